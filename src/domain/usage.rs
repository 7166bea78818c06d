//! Tokens and what they cost, in one schema for all vendors.

use rust_decimal::{Decimal, RoundingStrategy};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Tokens of one call or one operation. `None` is what the provider did not tell; it is never
/// turned into 0. `input_tokens` leaves cached ones out; reasoning is a part of `output_tokens`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    #[schema(required)]
    pub input_tokens: Option<i64>,
    #[schema(required)]
    pub output_tokens: Option<i64>,
    #[schema(required)]
    pub cache_read_tokens: Option<i64>,
    #[schema(required)]
    pub cache_write_tokens: Option<i64>,
    #[serde(skip)]
    pub reasoning_tokens: Option<i64>,
}

/// How the tokens of a receipt are known (`usage_receipts.usage_source`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageSource {
    Provider,
    Unknown,
}

impl UsageSource {
    /// The word in the column.
    pub fn as_str(self) -> &'static str {
        match self {
            UsageSource::Provider => "provider",
            UsageSource::Unknown => "unknown",
        }
    }
}

/// A row of the price book (`model_prices.price_id`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PriceId(pub i64);

/// The one row that all of these were counted with; `None` where there were several, or none.
pub fn common_price(prices: impl IntoIterator<Item = Option<PriceId>>) -> Option<PriceId> {
    let mut prices = prices.into_iter();
    let first = prices.next()??;
    prices.all(|price| price == Some(first)).then_some(first)
}

/// Prices in US dollars per million tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Prices {
    pub input: Decimal,
    pub output: Decimal,
    pub cache_read: Decimal,
    pub cache_write: Decimal,
}

impl Usage {
    /// The sum of what was told of either.
    #[must_use]
    pub fn plus(&self, other: &Usage) -> Usage {
        let sum = |one: Option<i64>, two: Option<i64>| match (one, two) {
            (Some(one), Some(two)) => Some(one.saturating_add(two)),
            (told, None) | (None, told) => told,
        };
        Usage {
            input_tokens: sum(self.input_tokens, other.input_tokens),
            output_tokens: sum(self.output_tokens, other.output_tokens),
            cache_read_tokens: sum(self.cache_read_tokens, other.cache_read_tokens),
            cache_write_tokens: sum(self.cache_write_tokens, other.cache_write_tokens),
            reasoning_tokens: sum(self.reasoning_tokens, other.reasoning_tokens),
        }
    }

    /// Known when both the input and the output were told: less is not a bill.
    pub fn source(&self) -> UsageSource {
        if self.input_tokens.is_some() && self.output_tokens.is_some() {
            UsageSource::Provider
        } else {
            UsageSource::Unknown
        }
    }

    /// The exact cost in US dollars, nine places, rounded half to even (`cost_usd numeric(20,9)`).
    /// `None` where the usage is unknown, or beyond what the column holds.
    pub fn cost(&self, prices: &Prices) -> Option<Decimal> {
        let (input, output) = (self.input_tokens?, self.output_tokens?);
        let parts = [
            (input, prices.input),
            (output, prices.output),
            (self.cache_read_tokens.unwrap_or(0), prices.cache_read),
            (self.cache_write_tokens.unwrap_or(0), prices.cache_write),
        ];
        let mut micro_dollars = Decimal::ZERO;
        for (tokens, price) in parts {
            micro_dollars = micro_dollars.checked_add(Decimal::from(tokens).checked_mul(price)?)?;
        }
        let cost = micro_dollars
            .checked_div(Decimal::from(1_000_000))?
            .round_dp_with_strategy(9, RoundingStrategy::MidpointNearestEven);
        (cost < Decimal::from(100_000_000_000_i64)).then_some(cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_is_exact_and_rounds_half_to_even() {
        let prices = Prices {
            input: Decimal::new(10, 1),
            output: Decimal::new(50, 1),
            cache_read: Decimal::new(1, 1),
            cache_write: Decimal::new(125, 2),
        };
        let usage = Usage {
            input_tokens: Some(27),
            output_tokens: Some(15),
            cache_read_tokens: Some(100),
            cache_write_tokens: Some(40),
            reasoning_tokens: None,
        };
        // 27 + 75 + 10 + 50 = 162 millionths of a dollar.
        assert_eq!(usage.cost(&prices), Some(Decimal::new(162_000, 9)));

        let half = |price| Prices { input: price, ..Prices::default() };
        let one = Usage { input_tokens: Some(1), output_tokens: Some(0), ..Usage::default() };
        // 0.0000000005 lies between 0 and 1 in the last place: to the even one.
        assert_eq!(one.cost(&half(Decimal::new(5, 4))), Some(Decimal::ZERO));
        assert_eq!(one.cost(&half(Decimal::new(15, 4))), Some(Decimal::new(2, 9)));
    }

    #[test]
    fn a_receipt_names_a_price_only_where_all_its_calls_were_counted_with_it() {
        let [one, two] = [Some(PriceId(1)), Some(PriceId(2))];
        assert_eq!(common_price([one, one, one]), one);
        assert_eq!(common_price([two]), two);
        assert_eq!(common_price([one, two]), None);
        assert_eq!(common_price([one, None]), None);
        assert_eq!(common_price([None, one]), None);
        assert_eq!(common_price([]), None);
    }

    #[test]
    fn unknown_usage_costs_nothing_knowable() {
        let usage = Usage { input_tokens: Some(3), ..Usage::default() };
        assert_eq!(usage.cost(&Prices::default()), None);
        assert_eq!(usage.source(), UsageSource::Unknown);
    }
}
