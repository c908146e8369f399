//! How a text speaks: whether it asks, and whether it names a time. What answers stands behind a question, and what
//! answers a question for a time names one. The lists stand here as the analysis writes words: folded, and not cut.

/// Words that name a time, in English, German, French, Spanish, Italian, Portuguese, Dutch and Russian.
const TIMES: &str = " yesterday today tonight tomorrow ago recently weekend week month year day night morning evening since \
    weeks months years days monday tuesday wednesday thursday friday saturday sunday spring summer autumn winter \
    january february march april may june july august september october november december \
    gestern heute morgen woche monat jahr tag wochen monate jahre tage montag dienstag mittwoch donnerstag freitag samstag \
    sonntag fruhling sommer herbst januar februar marz juni juli oktober dezember seit \
    hier aujourd'hui demain semaine mois an annee jour semaines ans jours lundi mardi mercredi jeudi vendredi samedi \
    dimanche ete hiver janvier fevrier mars avril mai juin juillet aout septembre octobre novembre decembre \
    ayer hoy manana semana mes ano dia semanas meses anos dias lunes martes miercoles jueves viernes sabado domingo verano \
    invierno enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre \
    ieri oggi domani settimana mese anno giorno settimane mesi anni giorni estate inverno gennaio febbraio aprile maggio \
    giugno luglio settembre ottobre dicembre \
    ontem hoje amanha janeiro fevereiro marco maio junho julho setembro outubro novembro dezembro \
    gisteren vandaag week maand jaar dag zomer \
    вчера сегодня завтра неделя неделе неделю месяц месяце год году день дня ";
/// Words that ask for a time.
const WHEN: &str = " when wann quand cuando quando wanneer когда ";
/// Words that do where what they ask for is a time, as in `which year`.
const WHICH: &str =
    " what which welche welchem welchen welcher welches quel quelle que cual che quale qual welk welke какой каком ";
/// Letters of the longest of these words.
const LETTERS_MAX: usize = 12;
/// A year as it is written.
const YEAR_DIGITS: usize = 4;

/// Whether a text ends with a question.
pub(super) fn asks(text: &str) -> bool {
    let closes =
        |letter: char| letter.is_whitespace() || matches!(letter, ')' | ']' | '"' | '\'' | '”' | '’' | '»' | '」');
    matches!(text.trim_end_matches(closes).chars().next_back(), Some('?' | '？' | '؟'))
}

/// Whether a word names a time.
pub(super) fn names_time(word: &[char]) -> bool {
    let is_year = || word.len() == YEAR_DIGITS && matches!(word, ['1', '9', ..] | ['2', '0' | '1', ..]);
    is_in(TIMES, word) || is_year() && word.iter().all(char::is_ascii_digit)
}

/// Whether a word asks for a time by itself.
pub(super) fn asks_when(word: &[char]) -> bool {
    is_in(WHEN, word)
}

/// Whether a word asks for what the next one names.
pub(super) fn asks_which(word: &[char]) -> bool {
    is_in(WHICH, word)
}

fn is_in(words: &str, word: &[char]) -> bool {
    if word.len() > LETTERS_MAX {
        return false;
    }
    let padded: String = [' '].iter().chain(word).chain(&[' ']).collect();
    words.contains(&padded)
}
