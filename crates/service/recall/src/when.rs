//! Months that a question names, so that texts of those months rank higher.
//!
//! It never filters: a date in a question may be the subject rather than the time.

use jiff::{Span, civil::Date, tz::TimeZone};

/// Months in English, German, French, Spanish, Italian and Portuguese. A word counts only next to a number or with a
/// capital within the sentence: "march" and "may" are verbs too.
const MONTHS: [&[&str]; 12] = [
    &["january", "januar", "janvier", "enero", "gennaio", "janeiro"],
    &["february", "februar", "février", "febrero", "febbraio", "fevereiro"],
    &["march", "märz", "mars", "marzo", "março"],
    &["april", "avril", "abril", "aprile"],
    &["may", "mai", "mayo", "maggio", "maio"],
    &["june", "juni", "juin", "junio", "giugno", "junho"],
    &["july", "juli", "juillet", "julio", "luglio", "julho"],
    &["august", "août", "agosto"],
    &["september", "septembre", "septiembre", "settembre", "setembro"],
    &["october", "oktober", "octobre", "octubre", "ottobre", "outubro"],
    &["november", "novembre", "noviembre", "novembro"],
    &["december", "dezember", "décembre", "diciembre", "dicembre", "dezembro"],
];

/// Years that a number may name.
const YEARS: std::ops::RangeInclusive<i16> = 1970..=2199;
/// Years to consider if a question names a month alone.
const YEARS_MAX: i16 = 50;
/// Words of a question that count.
const WORDS_MAX: usize = 200;

/// Finds the months that a question names, between the oldest and the newest text, as half-open ranges.
pub(super) fn months(query: &str, oldest_ms: i64, newest_ms: i64) -> Vec<(i64, i64)> {
    let words: Vec<&str> =
        query.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty()).take(WORDS_MAX).collect();
    let year = words.iter().find_map(|word| word.parse().ok().filter(|year| YEARS.contains(year)));
    let is_number = |at: Option<usize>| {
        at.and_then(|at| words.get(at)).is_some_and(|word| word.chars().all(|letter| letter.is_ascii_digit()))
    };
    let mut named: Vec<i8> = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let is_name = at > 0 && word.chars().next().is_some_and(char::is_uppercase);
        if is_name || is_number(at.checked_sub(1)) || is_number(Some(at + 1)) {
            named.extend(month(word));
        }
    }
    // `2024-05`, and `2024-05-07`
    if let Some(at) = words.iter().position(|word| word.len() == 4 && word.parse() == Ok(year.unwrap_or(-1))) {
        let digits = words.get(at + 1).filter(|next| next.len() == 2);
        named.extend(digits.and_then(|month| month.parse::<i8>().ok()).filter(|month| (1..=12).contains(month)));
    }
    let years = match year {
        Some(year) => year..=year,
        None => year_of(newest_ms).saturating_sub(YEARS_MAX).max(year_of(oldest_ms))..=year_of(newest_ms),
    };
    years.flat_map(|year| named.iter().filter_map(move |month| range(year, *month))).collect()
}

fn month(word: &str) -> Option<i8> {
    let word = word.to_lowercase();
    let at = MONTHS.iter().position(|names| names.contains(&&*word))?;
    i8::try_from(at + 1).ok()
}

fn year_of(time_ms: i64) -> i16 {
    jiff::Timestamp::from_millisecond(time_ms).map_or(1970, |time| time.to_zoned_datetime(TimeZone::UTC).year())
}

fn range(year: i16, month: i8) -> Option<(i64, i64)> {
    let first = Date::new(year, month, 1).ok()?;
    let next = first.checked_add(Span::new().months(1)).ok()?;
    let millis = |date: Date| date.to_zoned_datetime(TimeZone::UTC).ok().map(|time| time.timestamp().as_millisecond());
    Some((millis(first)?, millis(next)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLDEST: i64 = 1_672_531_200_000; // 2023-01-01
    const NEWEST: i64 = 1_735_689_599_000; // 2024-12-31
    const MAY_2023: (i64, i64) = (1_682_899_200_000, 1_685_577_600_000);
    const MAY_2024: (i64, i64) = (1_714_521_600_000, 1_717_200_000_000);

    #[test]
    fn a_month_is_found_however_it_is_written() {
        for query in ["Where was Ada in May 2024?", "on 7 may 2024", "le 7 mai 2024", "since 2024-05", "2024-05-07"] {
            assert_eq!(months(query, OLDEST, NEWEST), [MAY_2024], "{query}");
        }
        assert_eq!(months("What happened in May?", OLDEST, NEWEST), [MAY_2023, MAY_2024]);
    }

    #[test]
    fn what_is_no_month_is_none() {
        for query in ["May I come in?", "you may march", "in 2024", "", "99999999999999999999", "port 2024-99"] {
            assert_eq!(months(query, OLDEST, NEWEST), [], "{query}");
        }
    }
}
