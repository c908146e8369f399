//! Irregular forms of English words: `bought` is found by `buy`.

use std::{collections::HashMap, sync::LazyLock};

/// Words, each with its other forms.
const FORMS: &str = "become became;begin began begun;blow blew blown;break broke broken;bring brought;\
    build built;buy bought;catch caught;choose chose chosen;come came;deal dealt;dig dug;draw drew drawn;\
    dream dreamt;drink drank drunk;drive drove driven;eat ate eaten;fall fell fallen;feed fed;feel felt;fight fought;\
    find found;fly flew flown;forget forgot forgotten;forgive forgave forgiven;freeze froze frozen;give gave given;\
    go went gone;grow grew grown;hang hung;hear heard;hide hid hidden;hold held;keep kept;know knew known;lay laid;\
    lead led;learn learnt;leave left;lend lent;lie lain;light lit;lose lost;make made;mean meant;meet met;pay paid;\
    ride rode ridden;ring rang rung;rise risen;run ran;say said;see saw seen;seek sought;sell sold;send sent;\
    shake shook shaken;shine shone;shoot shot;show shown;sing sang sung;sit sat;sleep slept;speak spoke spoken;\
    spend spent;stand stood;steal stole stolen;stick stuck;strike struck;swear swore sworn;swim swam swum;\
    swing swung;take took taken;teach taught;tear tore torn;tell told;think thought;throw threw thrown;\
    understand understood;wake woke woken;wear wore worn;win won;write wrote written;child children;man men;\
    woman women;foot feet;tooth teeth;mouse mice;wife wives;knife knives";

/// Returns the base form of an irregular one.
pub(super) fn plain(word: &str) -> Option<&'static str> {
    static ALL: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| {
        let forms = FORMS.split(';').filter_map(|forms| forms.split_once(' '));
        forms.flat_map(|(plain, others)| others.split(' ').map(move |other| (other, plain))).collect()
    });
    ALL.get(word).copied()
}
