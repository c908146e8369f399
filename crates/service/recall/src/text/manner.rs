//! Whether a text asks, and whether it names a time: an answer follows a question, and the answer to "when" names a
//! time. The lists have words folded, but not stemmed.

use std::{collections::HashSet, sync::LazyLock};

/// Words that name a time, in English, German, French, Spanish, Italian, Portuguese, Dutch and Russian.
const TIMES: &str = "yesterday today tonight tomorrow ago recently weekend week month year day night morning evening since \
    weeks months years days monday tuesday wednesday thursday friday saturday sunday spring summer autumn winter \
    january february march april june july august september october november december \
    gestern heute morgen woche monat jahr wochen monate jahre tage montag dienstag mittwoch donnerstag freitag samstag \
    sonntag fruhling sommer herbst januar februar marz juni juli oktober dezember seit \
    aujourd'hui demain semaine mois annee jour semaines ans jours lundi mardi mercredi jeudi vendredi samedi \
    dimanche hiver janvier fevrier avril juin juillet aout septembre octobre novembre decembre \
    ayer hoy manana semana ano dia semanas meses anos dias lunes martes miercoles jueves viernes sabado domingo verano \
    invierno enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre \
    ieri oggi domani settimana mese anno giorno settimane mesi anni giorni estate inverno gennaio febbraio aprile maggio \
    giugno luglio settembre ottobre dicembre \
    ontem hoje amanha janeiro fevereiro maio junho julho setembro outubro novembro dezembro \
    gisteren vandaag week maand jaar dag zomer \
    вчера сегодня завтра неделя неделе неделю месяц месяце год году день дня";
/// Words that ask for a time by themselves.
const WHEN: &str = "when wann quand cuando quando wanneer когда";
/// Words that ask for a time together with the next one, as in `which year`.
const WHICH: &str =
    "what which welche welchem welchen welcher welches quel quelle que cual che quale qual welk welke какой каком";
/// Digits of a year.
const YEAR_DIGITS: usize = 4;

/// Returns true if a text ends with a question.
pub(super) fn asks(text: &str) -> bool {
    let closes =
        |letter: char| letter.is_whitespace() || matches!(letter, ')' | ']' | '"' | '\'' | '”' | '’' | '»' | '」');
    matches!(text.trim_end_matches(closes).chars().next_back(), Some('?' | '？' | '؟'))
}

/// Returns true if a word names a time.
pub(super) fn names_time(word: &str) -> bool {
    static ALL: LazyLock<HashSet<&str>> = LazyLock::new(|| TIMES.split_whitespace().collect());
    let is_year = || word.starts_with("19") || word.starts_with("20") || word.starts_with("21");
    let is_number = || word.len() == YEAR_DIGITS && word.bytes().all(|digit| digit.is_ascii_digit());
    ALL.contains(word) || is_number() && is_year()
}

/// Returns true if a word asks for a time by itself.
pub(super) fn asks_when(word: &str) -> bool {
    WHEN.split_whitespace().any(|other| other == word)
}

/// Returns true if a word asks for the kind of thing that the next one names.
pub(super) fn asks_which(word: &str) -> bool {
    WHICH.split_whitespace().any(|other| other == word)
}
