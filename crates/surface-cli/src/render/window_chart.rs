//! Chart of the context window turn by turn: a few lines, as wide as the terminal.

use std::fmt::Write as _;

use meerkat_service::{TurnNumber, session::event::ContextTokens};

/// Lines of the chart.
const ROWS: usize = 4;
/// Columns before the chart: the scale and its line.
const SCALE_COLUMNS: usize = 7;
/// Least columns of a chart, however narrow the terminal is.
const COLUMNS_MIN: usize = 8;
/// Partial block characters.
const EIGHTHS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Turn, and the context's changes in it and up to the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TurnFill {
    pub(crate) turn: TurnNumber,
    /// Input tokens of its last model call.
    pub(crate) input_tokens: u64,
    pub(crate) compactions: u64,
    pub(crate) undone: u64,
    /// Where the tokens of that call's request went, if its event says it.
    pub(crate) context: Option<ContextTokens>,
}

/// Drawing area of a chart.
#[derive(Clone, Copy)]
pub(crate) struct Canvas {
    /// Its columns.
    pub(crate) columns: usize,
    /// True if it shows block characters.
    pub(crate) has_blocks: bool,
}

/// Draws the chart and its legend. `turns` are in order; the chart is empty if no model was called.
pub(crate) fn chart(turns: &[TurnFill], window_tokens: u64, canvas: Canvas) -> String {
    let room = canvas.columns.saturating_sub(SCALE_COLUMNS).max(COLUMNS_MIN);
    let each = turns.len().div_ceil(room).max(1);
    let columns: Vec<TurnFill> = turns.chunks(each).map(merge).collect();
    let (Some(fullest), Some(last)) = (turns.iter().max_by_key(|turn| turn.input_tokens), turns.last()) else {
        return String::new();
    };
    if fullest.input_tokens == 0 {
        return String::new();
    }
    let line = if canvas.has_blocks { '│' } else { '|' };
    let mut text = String::from("\n");
    for row in (0..ROWS).rev() {
        let scale = if row + 1 == ROWS { "100 %" } else { "" };
        let scale = if row == 0 { "  0 %" } else { scale };
        let cells: String = columns.iter().map(|column| cell(*column, window_tokens, row, canvas.has_blocks)).collect();
        let _ = writeln!(text, "{scale:>5} {line}{}", cells.trim_end());
    }
    let marks: String = columns.iter().map(mark).collect();
    if !marks.trim_end().is_empty() {
        let _ = writeln!(text, "{:>5}  {}", "", marks.trim_end());
    }
    text + &legend(turns, each, (fullest, last), window_tokens)
}

fn legend(turns: &[TurnFill], each: usize, ends: (&TurnFill, &TurnFill), window_tokens: u64) -> String {
    let (fullest, last) = ends;
    let first = turns.first().map_or(0, |turn| turn.turn);
    let mut parts = vec![
        format!("turns {first} to {}", last.turn),
        format!("fullest {} % in turn {}", percent(fullest.input_tokens, window_tokens), fullest.turn),
        format!(
            "last {} % ({} of {window_tokens} tokens)",
            percent(last.input_tokens, window_tokens),
            last.input_tokens
        ),
    ];
    if each > 1 {
        parts.insert(1, format!("a column shows the fullest of {each} turns"));
    }
    let compactions: u64 = turns.iter().map(|turn| turn.compactions).sum();
    let undone: u64 = turns.iter().map(|turn| turn.undone).sum();
    if compactions > 0 {
        parts.push(format!("C compacted, {compactions} in all"));
    }
    if undone > 0 {
        parts.push(format!("U undone, {undone} in all"));
    }
    let left_out = if first > 0 { format!("Turns 0 to {} are left out.\n", first - 1) } else { String::new() };
    let split = last.context.map(split).unwrap_or_default();
    format!("{}\n{split}{left_out}", parts.join("; "))
}

/// Says where the tokens of the last request went.
fn split(context: ContextTokens) -> String {
    let ContextTokens { system, tools, reminders, pins, history, tool_results, free } = context;
    let free = free.map(|free| format!(", free {free}")).unwrap_or_default();
    format!(
        "estimated in the last: system {system}, tools {tools}, reminders {reminders}, pins {pins}, history {history}, \
         results {tool_results}{free}\n"
    )
}

/// Merges turns into one column.
fn merge(turns: &[TurnFill]) -> TurnFill {
    let mut column = TurnFill::default();
    for turn in turns {
        column.input_tokens = column.input_tokens.max(turn.input_tokens);
        column.compactions += turn.compactions;
        column.undone += turn.undone;
    }
    column
}

/// Returns the character of a column in a row, counted from 0 at the bottom.
fn cell(column: TurnFill, window_tokens: u64, row: usize, has_blocks: bool) -> char {
    let steps = if has_blocks { EIGHTHS.len() } else { 2 };
    let of_all = u128::from(column.input_tokens.min(window_tokens)) * (steps * ROWS) as u128;
    let filled = usize::try_from(of_all.div_ceil(u128::from(window_tokens.max(1)))).unwrap_or(steps * ROWS);
    match (filled.saturating_sub(row * steps).min(steps), has_blocks) {
        (0, _) => ' ',
        (part, true) => EIGHTHS[part - 1],
        (1, false) => '.',
        (_, false) => '#',
    }
}

const fn mark(column: &TurnFill) -> char {
    match (column.compactions > 0, column.undone > 0) {
        (true, true) => '*',
        (true, false) => 'C',
        (false, true) => 'U',
        (false, false) => ' ',
    }
}

fn percent(tokens: u64, window_tokens: u64) -> u64 {
    tokens.saturating_mul(100) / window_tokens.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(fills: &[u64]) -> Vec<TurnFill> {
        let turn = |(turn, fill): (usize, &u64)| TurnFill {
            turn: u32::try_from(turn).unwrap(),
            input_tokens: *fill,
            ..TurnFill::default()
        };
        fills.iter().enumerate().map(turn).collect()
    }

    #[test]
    fn a_column_is_as_high_as_its_turn_was_full() {
        let mut turns = turns(&[1, 25, 26, 50, 75, 100, 12]);
        turns[5].compactions = 1;
        turns[6].undone = 1;
        let ascii = "
100 % |     #
      |    ##
      |  .###
  0 % |.#####.
            CU
turns 0 to 6; fullest 100 % in turn 5; last 12 % (12 of 100 tokens); C compacted, 1 in all; U undone, 1 in all
";
        assert_eq!(chart(&turns, 100, Canvas { columns: 80, has_blocks: false }), ascii);
        let blocks = "
100 % │     █
      │    ██
      │  ▁███
  0 % │▁█████▄
            CU
turns 0 to 6; fullest 100 % in turn 5; last 12 % (12 of 100 tokens); C compacted, 1 in all; U undone, 1 in all
";
        assert_eq!(chart(&turns, 100, Canvas { columns: 80, has_blocks: true }), blocks);
    }

    #[test]
    fn many_turns_share_columns_and_older_ones_are_told_of() {
        let mut turns = turns(&[10; 100]);
        turns[50].input_tokens = 90;
        turns[51].compactions = 2;
        turns[51].undone = 1;
        let chart = chart(&turns[40..], 100, Canvas { columns: 40, has_blocks: false });
        let expected = "
100 % |     #
      |     #
      |     #
  0 % |.....#........................
            *
turns 40 to 99; a column shows the fullest of 2 turns; fullest 90 % in turn 50; last 10 % (10 of 100 tokens); \
C compacted, 2 in all; U undone, 1 in all
Turns 0 to 39 are left out.
";
        assert_eq!(chart, expected);
    }

    #[test]
    fn the_last_request_says_where_its_tokens_went() {
        let mut turns = turns(&[10, 20]);
        let free = Some(79);
        turns[1].context =
            Some(ContextTokens { system: 1, tools: 2, reminders: 3, pins: 4, history: 5, tool_results: 6, free });
        let chart = chart(&turns, 100, Canvas { columns: 40, has_blocks: false });
        let expected = "(20 of 100 tokens)\n\
                        estimated in the last: system 1, tools 2, reminders 3, pins 4, history 5, results 6, free 79\n";
        assert!(chart.ends_with(expected), "{chart}");
    }

    #[test]
    fn what_is_odd_breaks_nothing() {
        let canvas = Canvas { columns: 0, has_blocks: true };
        assert_eq!(chart(&[], 100, canvas), "");
        assert_eq!(chart(&turns(&[0, 0]), 100, canvas), "");
        let over = chart(&turns(&[u64::MAX, 5]), 0, canvas);
        assert!(over.contains('\n'), "{over}");
    }
}
