//! Which images a request still has.

use super::*;

/// Lists the images that are sent of images with these sizes in MiB.
fn sent(sizes: &[u64]) -> Vec<u64> {
    let image = |&size: &u64| {
        let [media_type, blob] = ["image/png", "b10b"].map(str::to_owned);
        Image { media_type, blob, bytes: size * 1024 * 1024, width: 1, height: 1 }
    };
    let images: Vec<Image> = sizes.iter().map(image).collect();
    sizes[first_sent(&images.iter().collect::<Vec<_>>())..].to_vec()
}

#[test]
fn images_leave_a_request_in_steps() {
    let firsts: Vec<usize> = (1..=33).map(|count| count - sent(&vec![0; count]).len()).collect();
    let steps = [(15, 0), (8, 8), (8, 16), (2, 24)];
    let expected: Vec<usize> = steps.iter().flat_map(|&(times, first)| vec![first; times]).collect();
    assert_eq!(firsts, expected);
    assert_eq!(sent(&[3, 3, 3, 3]), [3, 3, 3, 3]);
    assert_eq!(sent(&[3, 3, 3, 3, 1]), [3, 3, 1]);
    assert_eq!(sent(&[3, 3, 3, 3, 1, 3, 2]), [3, 3, 1, 3, 2]);
    // No image is taken for larger than one can be.
    assert_eq!(sent(&[1 << 40, 1 << 40]).len(), 2);
}
