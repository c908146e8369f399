//! Which images a request still has.

use super::*;

/// Lists the images that are sent of messages with images of these sizes in MiB: prompts, or single results.
fn sent_of(prompts: &[&[u64]]) -> Vec<u64> {
    let (mut all, mut sizes) = (Vec::new(), Vec::new());
    for prompt in prompts {
        let first = all.len();
        for size in *prompt {
            let shown = Shown { media_type: "image/png", blob: "b10b", bytes: size * 1024 * 1024 };
            all.push(Sent { shown, stays_from: first });
            sizes.push(*size);
        }
    }
    sizes[first_sent(&all)..].to_vec()
}

/// Lists those of results of tools.
fn sent(sizes: &[u64]) -> Vec<u64> {
    sent_of(&sizes.iter().map(std::slice::from_ref).collect::<Vec<_>>())
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

#[test]
fn the_images_of_the_newest_prompt_stay_together() {
    let count = |prompts: &[usize]| {
        let prompts: Vec<Vec<u64>> = prompts.iter().map(|images| vec![0; *images]).collect();
        sent_of(&prompts.iter().map(Vec::as_slice).collect::<Vec<_>>()).len()
    };
    assert_eq!((count(&[16]), count(&[15, 16]), count(&[1, 16])), (16, 16, 16));
    // Others leave as those of results do, and its own with the next message that has one.
    assert_eq!((count(&[7, 8]), count(&[8, 8]), count(&[10, 6]), count(&[16, 1])), (15, 8, 8, 8));
    assert_eq!(sent_of(&[&[3, 3], &[3, 3, 3, 3, 3]]), [3, 3, 3, 3, 3]);
}
