// hnswlib over the vectors that the benchmark wrote: built once, then asked with each width that a line of input names.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>
#include <vector>

#include "hnswlib/hnswlib.h"

template <typename T> std::vector<T> read(const std::string &path, size_t count) {
    std::vector<T> values(count);
    std::ifstream(path, std::ios::binary).read(reinterpret_cast<char *>(values.data()), count * sizeof(T));
    return values;
}

// As in the benchmark: the same fifth is removed.
static bool is_removed(uint64_t id) {
    uint64_t mixed = (id + 1) * 0x9E3779B97F4A7C15ULL;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBULL;
    return (mixed ^ (mixed >> 31)) % 5 == 0;
}

// How long this thread has worked.
static double seconds() {
    timespec worked;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &worked);
    return double(worked.tv_sec) + double(worked.tv_nsec) / 1e9;
}

int main(int, char **argv) {
    const std::string dir = argv[1];
    const size_t count = atol(argv[2]), dimension = atol(argv[3]), queries = atol(argv[4]), hits = atol(argv[5]);
    auto vectors = read<float>(dir + "/vectors", count * dimension);
    auto asked = read<float>(dir + "/queries", queries * dimension);
    auto truth = read<uint32_t>(dir + "/truth", queries * hits);
    hnswlib::InnerProductSpace space(dimension);
    hnswlib::HierarchicalNSW<float> graph(&space, count, atol(argv[6]), atol(argv[7]));
    double begun = seconds();
    for (size_t id = 0; id < count; id++) graph.addPoint(&vectors[id * dimension], id);
    for (size_t id = 0; id < count; id++)
        if (is_removed(id)) graph.markDelete(id);
    printf("%f\n", seconds() - begun);
    fflush(stdout);
    size_t width;
    while (scanf("%zu", &width) == 1) {
        graph.setEf(width);
        size_t found = 0;
        begun = seconds();
        for (size_t query = 0; query < queries; query++) {
            auto answer = graph.searchKnn(&asked[query * dimension], hits);
            for (; !answer.empty(); answer.pop())
                for (size_t at = 0; at < hits; at++) found += truth[query * hits + at] == answer.top().second;
        }
        double took = seconds() - begun;
        printf("%f %f\n", queries / took, double(found) / double(queries * hits));
        fflush(stdout);
    }
}
