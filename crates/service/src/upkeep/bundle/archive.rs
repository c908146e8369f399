//! Bytes of an archive: ustar headers of regular files.
//!
//! A header is accepted only if it is, byte for byte, the one that would be written for its name and size. So there are
//! no links, folders, devices, owners or extensions to be careful about.

/// Bytes of a block; headers and bodies begin at its multiples.
pub(super) const BLOCK: usize = 512;
/// Limit of a file's bytes: eleven octal digits.
const BYTES_MAX: u64 = 1 << 33;

/// Makes the header of the file `folder/name`; `None` if it has no room for them.
pub(super) fn header(folder: &str, name: &str, bytes: u64) -> Option<[u8; BLOCK]> {
    if name.len() > 99 || folder.len() > 154 || bytes >= BYTES_MAX {
        return None;
    }
    let mut block = [0; BLOCK];
    let mut put = |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000600\0");
    // Owner and group; the size; the time.
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{bytes:011o}\0"));
    put(136, "00000000000\0");
    // The checksum counts as blanks while it is made.
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\0");
    put(263, "00");
    // Numbers of a device.
    put(329, "0000000\0");
    put(337, "0000000\0");
    put(345, folder);
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Some(block)
}

/// Reads folder, name and size from a header; `None` if it is not one that is written here.
pub(super) fn read(block: &[u8; BLOCK]) -> Option<(&str, &str, u64)> {
    let text = |at: usize, len: usize| {
        let field = &block[at..at + len];
        let end = field.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&field[..end]).ok()
    };
    let (name, folder) = (text(0, 100)?, text(345, 155)?);
    let bytes = u64::from_str_radix(text(124, 12)?, 8).ok()?;
    (header(folder, name, bytes)? == *block).then_some((folder, name, bytes))
}

/// Counts the zeros after a body.
pub(super) const fn padding(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK as u64) - bytes
}
