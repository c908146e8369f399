//! What model calls cost: an amount of money, the price of a model, and the bill of a call.
//!
//! Everything is counted in integers: a call is rounded once, half up, and sums are sums of what was rounded.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{clock::Timestamp, model::Usage};

/// Millionths of a dollar in a dollar, and tokens to which a price refers.
const MILLION: u64 = 1_000_000;

/// Digits after the point of an amount and of a price.
const DIGITS: usize = 6;

/// Amount of money.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Cost {
    /// Decimal number with six digits after the point.
    amount: Decimal,
    /// Its currency.
    currency: Currency,
}

/// Currency of an amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
enum Currency {
    /// US dollars.
    #[default]
    #[serde(rename = "USD")]
    Usd,
}

impl Cost {
    /// Makes an amount of millionths of a US dollar.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self { amount: Decimal(micros), currency: Currency::Usd }
    }

    /// Makes an amount of US dollars.
    #[must_use]
    pub const fn from_dollars(dollars: Decimal) -> Self {
        Self { amount: dollars, currency: Currency::Usd }
    }

    /// Returns the millionths of a US dollar.
    #[must_use]
    pub const fn micros(self) -> u64 {
        self.amount.0
    }

    /// Adds two costs; the sum is unknown if one of them is, or if there is no such number.
    #[must_use]
    pub fn sum(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        one?.micros().checked_add(other?.micros()).map(Self::from_micros)
    }

    /// Subtracts a part from a sum; the rest is unknown if one of them is.
    #[must_use]
    pub fn rest(sum: Option<Self>, part: Option<Self>) -> Option<Self> {
        sum?.micros().checked_sub(part?.micros()).map(Self::from_micros)
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} USD", self.amount)
    }
}

/// Number with six digits after the point, written as a string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Decimal(u64);

impl Decimal {
    /// Reads a decimal number that is not negative and has at most six digits after the point.
    fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let are_digits = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if !are_digits(whole) || !are_digits(fraction) || fraction.len() > DIGITS {
            return None;
        }
        let fraction: u64 = format!("{fraction:0<DIGITS$}").parse().ok()?;
        whole.parse::<u64>().ok()?.checked_mul(MILLION)?.checked_add(fraction).map(Self)
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:0DIGITS$}", self.0 / MILLION, self.0 % MILLION)
    }
}

impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for Decimal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text).ok_or_else(|| {
            format!(
                "{text:?} is not an amount; write a decimal number as a string, with at most {DIGITS} digits after the \
                 point: \"0.25\""
            )
        })
    }
}

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<'de, str>::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for Decimal {
    fn schema_name() -> Cow<'static, str> {
        "Decimal".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "Decimal number with six digits after the point.",
            "pattern": "^[0-9]+(\\.[0-9]{1,6})?$",
        })
    }
}

/// Price of a model from a day on, in US dollars for a million tokens.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Name of the model, with its vendor or server: `anthropic/claude-sonnet-5-5`.
    pub model: String,
    /// First day on which it holds, in UTC: `2026-10-07`. Always, if left out.
    #[serde(default)]
    pub since: String,
    /// It holds for requests with more input than this.
    #[serde(default)]
    pub above_tokens: u64,
    /// Input that was neither read from a cache nor written to one.
    pub input: Decimal,
    /// Output, reasoning included.
    pub output: Decimal,
    /// Input that was read from the cache.
    pub cached_input: Option<Decimal>,
    /// Input that was written to the cache.
    pub cache_write: Option<Decimal>,
    /// Input that was written to the cache for long (`cache = "long"`).
    pub long_cache_write: Option<Decimal>,
}

/// Checks what the types of prices leave open.
///
/// # Errors
/// A sentence that names the first row that is wrong: its model's name fits no model, its day is none, there is another
/// row like it, or there is none for short requests.
pub fn check(prices: &[Price]) -> Result<(), String> {
    let is_name = |name: &str| {
        name == "scripted" || matches!(name.split_once('/'), Some((of, it)) if !of.is_empty() && !it.is_empty())
    };
    let is_day = |since: &str| {
        let day = format!("{since}T00:00:00.000Z");
        since.is_empty() || (since.len() == 10 && serde_json::from_value::<Timestamp>(day.into()).is_ok())
    };
    for (at, price) in prices.iter().enumerate() {
        let Price { model, since, above_tokens, .. } = price;
        let same = |other: &&Price| (&other.model, &other.since) == (model, since);
        let is_twice = prices[..at].iter().filter(same).any(|other| other.above_tokens == *above_tokens);
        let wrong = if !is_name(model) {
            "no model has this name; write it with its vendor or server, as in \"local/qwen3\"".to_owned()
        } else if !is_day(since) {
            format!("{since:?} is not a day; write one as \"2026-10-07\"")
        } else if is_twice {
            "an earlier row has the same model, day and `above_tokens`; leave one of them out".to_owned()
        } else if !prices.iter().filter(same).any(|other| other.above_tokens == 0) {
            format!(
                "shorter requests have no price from this day on; add a row without `above_tokens = {above_tokens}`"
            )
        } else {
            continue;
        };
        return Err(format!("row {} ({model:?}): {wrong}", at + 1));
    }
    Ok(())
}

/// Returns true if a model has a price on that day, also of what is written to the long cache if that is asked for.
#[must_use]
pub fn is_priced(prices: &[Price], is_cached_long: bool, at: Timestamp) -> bool {
    let has_long = |price: &Price| price.cache_write.is_none() || price.long_cache_write.is_some();
    first_day(prices, at)
        .is_some_and(|since| !is_cached_long || prices.iter().filter(|price| price.since == since).all(has_long))
}

/// First day of the prices that hold.
fn first_day(prices: &[Price], at: Timestamp) -> Option<&str> {
    let today = at.to_string();
    prices.iter().map(|price| price.since.as_str()).filter(|since| *since <= today.as_str()).max()
}

/// Computes the cost of a call from its bill, by the newest of a model's prices that holds on that day. It is unknown
/// without a bill, or without a price for a part of it.
#[must_use]
pub fn cost(prices: &[Price], usage: Usage, is_cached_long: bool, at: Timestamp) -> Option<Cost> {
    // Every request has some input: a bill without it is none, or half of one.
    if prices.is_empty() || usage.input_tokens == 0 {
        return None;
    }
    let since = first_day(prices, at)?;
    let holds =
        |price: &&Price| price.since == since && (price.above_tokens == 0 || usage.input_tokens > price.above_tokens);
    let price = prices.iter().filter(holds).max_by_key(|price| price.above_tokens)?;
    let cache_write = if is_cached_long { price.long_cache_write } else { price.cache_write };
    let fresh_tokens = usage.input_tokens.checked_sub(usage.cached_tokens)?.checked_sub(usage.cache_write_tokens)?;
    let parts = [
        (fresh_tokens, Some(price.input)),
        (usage.cached_tokens, price.cached_input),
        (usage.cache_write_tokens, cache_write),
        (usage.output_tokens, Some(price.output)),
    ];
    // Millionths of a dollar for a million tokens.
    let exact = parts
        .into_iter()
        .filter(|(tokens, _)| *tokens > 0)
        .try_fold(0_u128, |sum, (tokens, price)| sum.checked_add(u128::from(tokens) * u128::from(price?.0)));
    let million = u128::from(MILLION);
    let micros = exact?.checked_add(million / 2)? / million;
    u64::try_from(micros).ok().map(Cost::from_micros)
}

/// Computes what the input of a call costs at least: all of it at the cheapest price that input has on that day, be it
/// that of cached input. It is rounded down. Without a price it is unknown.
#[must_use]
pub fn least_cost(prices: &[Price], input_tokens: u64, at: Timestamp) -> Option<Cost> {
    let since = first_day(prices, at)?;
    let of_today = prices.iter().filter(|price| price.since == since);
    let cheapest = of_today.flat_map(|price| [Some(price.input), price.cached_input]).flatten().min()?;
    u64::try_from(u128::from(input_tokens) * u128::from(cheapest.0) / u128::from(MILLION)).ok().map(Cost::from_micros)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const AT: &str = "2026-10-06T23:59:59.999Z";

    fn time(text: &str) -> Timestamp {
        serde_json::from_value(json!(text)).unwrap()
    }

    fn price(row: serde_json::Value) -> Price {
        serde_json::from_value(row).unwrap()
    }

    fn usage(input: u64, cached: u64, written: u64, output: u64) -> Usage {
        Usage {
            input_tokens: input,
            output_tokens: output,
            cached_tokens: cached,
            cache_write_tokens: written,
            reasoning_tokens: output / 2,
        }
    }

    fn micros(prices: &[Price], usage: Usage, at: &str) -> Option<u64> {
        cost(prices, usage, false, time(at)).map(Cost::micros)
    }

    #[test]
    fn each_part_of_a_bill_has_its_price_and_the_sum_is_rounded_half_up() {
        let prices = [price(json!({
            "model": "v/m", "input": "2", "output": "10", "cached_input": "0.20", "cache_write": "2.50",
            "long_cache_write": "4",
        }))];
        // 200 * 2 + 1000 * 0.2 + 300 * 2.5 + 420 * 10 = 5550
        assert_eq!(micros(&prices, usage(1_500, 1_000, 300, 420), AT), Some(5_550));
        assert_eq!(cost(&prices, usage(1_500, 1_000, 300, 420), true, time(AT)), Some(Cost::from_micros(6_000)));

        // One token costs 0.2, 2 tokens 0.4, 3 tokens 0.6 millionths; 0.5 is rounded up.
        for (tokens, expected) in [(1, 0), (2, 0), (3, 1), (7, 1), (8, 2)] {
            assert_eq!(micros(&prices, usage(tokens, tokens, 0, 0), AT), Some(expected), "{tokens}");
        }
        let half = [price(json!({ "model": "v/m", "input": "0.5", "output": "0.000001" }))];
        assert_eq!(micros(&half, usage(1, 0, 0, 0), AT), Some(1));
        let smallest = [price(json!({ "model": "v/m", "input": "0", "output": "0.000001" }))];
        assert_eq!(micros(&smallest, usage(1, 0, 0, 499_999), AT), Some(0));
        assert_eq!(micros(&smallest, usage(1, 0, 0, 500_000), AT), Some(1));
    }

    #[test]
    fn input_costs_at_least_what_the_cheapest_price_of_the_day_says() {
        let row = |since: &str, above: u64, input: &str, cached: Option<&str>| {
            price(json!({
                "model": "v/m", "since": since, "above_tokens": above, "input": input, "output": "10",
                "cached_input": cached,
            }))
        };
        let least = |prices: &[Price], tokens| least_cost(prices, tokens, time(AT)).map(Cost::micros);
        assert_eq!(least(&[], 1_000), None);
        assert_eq!(least(&[row("2026-10-07", 0, "2", None)], 1_000), None, "it has not begun");
        assert_eq!(least(&[row("", 0, "2", None)], 1_000), Some(2_000));
        assert_eq!(least(&[row("", 0, "2", Some("0.2"))], 1_000), Some(200));
        assert_eq!(least(&[row("", 0, "2", Some("0.2"))], 4), Some(0), "0.8 is rounded down");
        assert_eq!(least(&[row("", 0, "2", Some("3"))], 1_000), Some(2_000));
        // Whether a request is a long one is known by its bill.
        let long = [row("", 0, "2", Some("0.2")), row("", 500, "4", Some("0.4"))];
        assert_eq!(least(&long, 1_000), Some(200));
        let since = [row("", 0, "2", Some("0.2")), row("2026-10-01", 0, "3", None)];
        assert_eq!(least(&since, 1_000), Some(3_000), "an earlier price holds no more");
        assert_eq!(least(&[row("", 0, "2", None)], u64::MAX), None, "more than there is");
    }

    #[test]
    fn a_cost_is_unknown_if_a_price_or_the_bill_is_missing_and_never_0() {
        let prices = [price(json!({ "model": "v/m", "input": "2", "output": "10" }))];
        assert_eq!(micros(&[], usage(1, 0, 0, 1), AT), None);
        assert_eq!(micros(&prices, usage(0, 0, 0, 0), AT), None, "no bill");
        assert_eq!(micros(&prices, usage(0, 0, 0, 5), AT), None, "half a bill");
        assert_eq!(micros(&prices, usage(10, 1, 0, 1), AT), None, "no price for cached input");
        assert_eq!(micros(&prices, usage(10, 0, 1, 1), AT), None, "no price for writing to the cache");
        assert_eq!(micros(&prices, usage(10, 8, 3, 1), AT), None, "parts that are more than the whole");
        assert_eq!(micros(&prices, usage(u64::MAX, 0, 0, u64::MAX), AT), None, "more than there is");
        let free = [price(json!({ "model": "v/m", "input": "0", "output": "0" }))];
        assert_eq!(micros(&free, usage(10, 0, 0, 1), AT), Some(0), "a price of 0 is a price");
    }

    #[test]
    fn a_limit_of_what_the_long_cache_costs_needs_its_price() {
        let row = |more: serde_json::Value| {
            let mut row = json!({ "model": "v/m", "input": "1", "output": "1" });
            row.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            price(row)
        };
        for (more, is_long, is_known) in [
            (json!({}), false, true),
            // Its vendor bills no writes.
            (json!({}), true, true),
            (json!({ "cache_write": "1" }), false, true),
            (json!({ "cache_write": "1" }), true, false),
            (json!({ "cache_write": "1", "long_cache_write": "2" }), true, true),
            (json!({ "since": "2026-10-07" }), false, false),
        ] {
            assert_eq!(is_priced(&[row(more.clone())], is_long, time(AT)), is_known, "{more} {is_long}");
        }
    }

    #[test]
    fn the_newest_price_of_that_day_and_length_holds() {
        let row = |since: &str, above: u64, input: &str| {
            price(json!({ "model": "v/m", "since": since, "above_tokens": above, "input": input, "output": "0" }))
        };
        let prices = [
            row("2026-10-07", 100, "8"),
            row("2026-10-07", 0, "4"),
            row("2026-01-01", 0, "1"),
            row("2026-01-01", 100, "2"),
        ];
        for (at, tokens, expected) in [
            ("2025-12-31T23:59:59.999Z", 100, None),
            ("2026-01-01T00:00:00.000Z", 100, Some(100)),
            (AT, 101, Some(202)),
            ("2026-10-07T00:00:00.000Z", 100, Some(400)),
            ("2030-01-01T00:00:00.000Z", 101, Some(808)),
        ] {
            assert_eq!(micros(&prices, usage(tokens, 0, 0, 0), at), expected, "{at} {tokens}");
        }
    }

    #[test]
    fn an_amount_is_a_decimal_number_with_six_digits() {
        let written = json!({ "amount": "0.012345", "currency": "USD" });
        assert_eq!(serde_json::to_value(Cost::from_micros(12_345)).unwrap(), written);
        assert_eq!(serde_json::to_value(Cost::default()).unwrap()["amount"], "0.000000");
        assert_eq!(serde_json::to_value(Cost::from_micros(u64::MAX)).unwrap()["amount"], "18446744073709.551615");
        let read = |amount: &str| {
            serde_json::from_value::<Cost>(json!({ "amount": amount, "currency": "USD" })).map(Cost::micros)
        };
        for (amount, expected) in
            [("0.012345", 12_345), ("1", 1_000_000), ("0.5", 500_000), ("18446744073709.551615", u64::MAX)]
        {
            assert_eq!(read(amount).unwrap(), expected);
        }
        for amount in ["", ".5", "1.", "-1", "+1", "1e3", "NaN", "0.0000001", "1,5", "18446744073709.551616", " 1"] {
            assert!(read(amount).is_err(), "{amount:?}");
        }
        let newer = json!({ "amount": "1", "currency": "USD", "tax": "0.2" });
        assert!(serde_json::from_value::<Cost>(newer).is_ok(), "an event of a newer version");
        let wrong = [json!({ "amount": 1, "currency": "USD" }), json!({ "amount": "1", "currency": "EUR" })];
        for wrong in wrong.into_iter().chain([json!({ "amount": "1" }), json!("1")]) {
            assert!(serde_json::from_value::<Cost>(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_sum_or_rest_that_is_not_a_number_is_unknown() {
        let (one, most) = (Some(Cost::from_micros(1)), Some(Cost::from_micros(u64::MAX)));
        assert_eq!(Cost::sum(one, one), Some(Cost::from_micros(2)));
        assert_eq!((Cost::sum(most, one), Cost::sum(None, one), Cost::sum(one, None)), (None, None, None));
        assert_eq!(Cost::rest(most, most), Some(Cost::default()));
        assert_eq!((Cost::rest(one, most), Cost::rest(one, None)), (None, None));
    }

    #[test]
    fn a_row_that_can_never_hold_or_says_something_twice_is_refused_by_its_number() {
        let row = |model: &str, since: &str, above: u64| {
            price(json!({ "model": model, "since": since, "above_tokens": above, "input": "0", "output": "0" }))
        };
        let first = || row("v/m", "", 0);
        let more = [row("v/m", "", 9), row("v/m", "2026-02-28", 0), row("w/a/b", "", 0), row("scripted", "", 0)];
        assert_eq!(check(&more.into_iter().chain([first()]).collect::<Vec<_>>()), Ok(()));
        for (second, why) in [
            (row("v/m", "2026-02-30", 0), "is not a day"),
            (row("v/m", "2026-1-1", 0), "is not a day"),
            (row("v/m", "soon", 0), "is not a day"),
            (row("v/m", "2026-10-07T00:00:00Z", 0), "is not a day"),
            (row("qwen3", "", 0), "no model has this name"),
            (row("v/", "", 0), "no model has this name"),
            (row("/m", "", 0), "no model has this name"),
            (first(), "an earlier row has the same"),
            (row("v/m", "2026-02-28", 9), "shorter requests have no price"),
        ] {
            let refused = check(&[first(), second]).unwrap_err();
            assert!(refused.starts_with("row 2 (") && refused.contains(why), "{refused}");
        }
    }
}
