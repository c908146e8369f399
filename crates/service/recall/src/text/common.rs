//! Stop words: questions are full of them, and in a memory some are rare enough to outweigh the words that matter.
//!
//! Texts keep them; only queries drop them, and only if other words are left, so that changing the list changes no
//! file. They are folded, but not stemmed.

/// English, German, French, Spanish, Italian, Portuguese, Dutch and Russian articles, pronouns, auxiliaries,
/// prepositions and question words.
const COMMON: &str = " a about after again all also am an and any are as at be been being but by can could did do does doing \
    for from get go had has have having he her him his how i if in into is it its just me more my no not of off on once \
    only or our out s she should so some such t than that the their them then there these they this those to too up us \
    very was we were what when where which while who whom whose why will with would you your \
    das der dem den des die ein eine einem einen einer eines er es hat ich im ist mit oder sich sie sind und von wann \
    war warum was wer wie wir wo wofur welche welchem welchen welcher welches zu \
    au aux c ce cette d de du elle elles en est et il ils l la le les ou par pour qu que quel quelle quelles quels qui s \
    sa ses son sont sur t un une \
    al como cual cuales cuando de del donde el ella ellos en es esta fue ha han las lo los para por que quien se su sus \
    un una y \
    che chi cosa da dei del della di dove e gli ha i il in io lo nel per quale quali quando sono sua suo una uno \
    ao as com da das do dos ela ele em foi na no nas nos o os onde para por quais qual quando que quem seu sua um uma \
    de een en het hij hoe in is van waar wanneer wat welke wie zij \
    а был была в вы где для его ее и из к как какая какие какои какую когда кто мы на не о он она они от по с с у что я ";

/// Returns true if a folded word is a stop word.
pub(super) fn is_common(word: &[char]) -> bool {
    const LETTERS_MAX: usize = 8;
    if word.len() > LETTERS_MAX {
        return false;
    }
    let padded: String = [' '].iter().chain(word).chain(&[' ']).collect();
    COMMON.contains(&padded)
}
