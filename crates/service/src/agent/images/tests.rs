//! Which images a request still has.

use super::*;

/// Images with these sizes in MiB: of a prompt, or of results, each of its own message.
#[derive(Clone, Copy)]
enum Of<'a> {
    Prompt(&'a [u64]),
    Results(&'a [u64]),
}
use Of::{Prompt, Results};

/// Lists the sizes of those that are sent.
fn sent_of(messages: &[Of<'_>]) -> Vec<u64> {
    let (mut all, mut sizes) = (Vec::new(), Vec::new());
    for (at, message) in messages.iter().enumerate() {
        let (prompt, of) = match message {
            Prompt(of) => (Some(at), of),
            Results(of) => (None, of),
        };
        for size in *of {
            let (media_type, blob) = ("image/png", "b10b");
            let shown = Shown { media_type, blob, bytes: size * 1024 * 1024, pages: None };
            all.push(Named { shown, prompt });
            sizes.push(*size);
        }
    }
    kept(&all).into_iter().map(|at| sizes[at]).collect()
}

fn sent(sizes: &[u64]) -> Vec<u64> {
    sent_of(&[Results(sizes)])
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
        sent_of(&prompts.iter().map(|of| Prompt(of)).collect::<Vec<_>>()).len()
    };
    assert_eq!((count(&[16]), count(&[15, 16]), count(&[1, 16])), (16, 16, 16));
    // Others leave as those of results do, and its own with the next prompt that has one.
    assert_eq!((count(&[7, 8]), count(&[8, 8]), count(&[10, 6]), count(&[16, 1])), (15, 8, 8, 8));
    assert_eq!(sent_of(&[Prompt(&[3, 3]), Prompt(&[3, 3, 3, 3, 3])]), [3, 3, 3, 3, 3]);
}

#[test]
fn the_images_of_the_newest_prompt_stay_while_results_bring_more() {
    // The prompt's have 0 MiB here, and those of results 1.
    let left = |own: usize, results: usize| {
        let sent = sent_of(&[Results(&[1]), Prompt(&vec![0; own]), Results(&vec![1; results])]);
        assert_eq!(sent.iter().filter(|size| **size == 0).count(), own);
        sent.len() - own
    };
    // 20 images are the most: 16 of the prompt, and up to 4 others, of which 2 stay when there are more.
    let others: Vec<usize> = (0..=7).map(|results| left(16, results)).collect();
    assert_eq!(others, [0, 1, 2, 3, 4, 2, 3, 4]);
    // Of results alone at most 15 are sent, and at most 12 MiB.
    assert_eq!((left(1, 10), left(1, 11), left(1, 12)), (11, 12, 8));
    let many = sent_of(&[Prompt(&[0]), Results(&[0; 15])]).len();
    assert_eq!((many, sent_of(&[Prompt(&[0]), Results(&[0; 16])]).len()), (16, 9));
    // Without room for what a result shows, the prompt's own leave as all others do.
    let large = [3; 6];
    assert_eq!(sent_of(&[Prompt(&large), Results(&[3])]).len(), 7);
    assert_eq!(sent_of(&[Prompt(&large), Results(&[1, 1, 1, 1])]), [3, 3, 3, 3, 3, 3, 1, 1]);
    assert_eq!(sent_of(&[Prompt(&[3; 7]), Results(&[3, 1])]), [3, 3, 1]);
    // More than may be in a prompt, as a bundle may have.
    assert_eq!(sent_of(&[Prompt(&[0; 40]), Results(&[0, 0])]).len(), 41);
}
