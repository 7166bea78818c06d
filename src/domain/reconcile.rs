//! A provider's export beside our own calls: for each day and model, what was committed, what was wasted
//! and why, what nobody told us, and what is then still not explained.
//!
//! Calls count where their answer reached nobody too: the provider bills them all the same. A call whose
//! usage was not told may have cost anything; it explains that the provider counts more, never that it
//! counts less.

use std::collections::BTreeMap;

use chrono::NaiveDate;
use rust_decimal::Decimal;

use super::provider_bill::{Bill, Billed, TokenSums, is_model};

/// Half a cent: what an amount in an export may be rounded by.
const ROUNDING: Decimal = Decimal::from_parts(5, 0, 0, false, 3);

/// Some of our calls, summed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallSums {
    pub calls: u64,
    /// Of those that told theirs.
    pub tokens: TokenSums,
    /// US dollars, of those that told their usage.
    pub cost: Decimal,
    /// Calls that may have been billed and did not tell for how much.
    pub unknown: u64,
}

impl CallSums {
    fn add(&mut self, more: &CallSums) {
        self.calls += more.calls;
        self.tokens = self.tokens.plus(more.tokens);
        self.cost = self.cost.saturating_add(more.cost);
        self.unknown += more.unknown;
    }
}

/// Our calls of a day to a model, of one fate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OurCalls {
    pub day: NaiveDate,
    /// As the configuration calls it.
    pub provider: String,
    /// The vendor's own name of the model.
    pub upstream: String,
    /// `None`: the output is in an answer. Otherwise why the call was wasted.
    pub wasted: Option<String>,
    pub sums: CallSums,
}

/// What stands beside each other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Line {
    pub theirs: Option<Billed>,
    pub committed: CallSums,
    pub wasted: BTreeMap<String, CallSums>,
}

/// What a comparison says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Agrees,
    /// The provider counts more, and as many calls did not tell their usage.
    Unknown,
    Differs,
}

/// A line for each day and model, under the vendor's name as we know it.
pub type Comparison = BTreeMap<(NaiveDate, String), Line>;

/// Puts both beside each other. `names` says which of our models an export's name means, where that cannot
/// be seen; `providers` whose calls the export is about: all whose models it names where none are given.
pub fn compare(
    bill: &Bill,
    ours: &[OurCalls],
    names: &BTreeMap<String, String>,
    providers: &[String],
) -> Comparison {
    let known: Vec<&str> = ours.iter().map(|calls| calls.upstream.as_str()).collect();
    let meant = |billed: &str| -> String {
        if let Some(name) = names.get(billed) {
            return name.clone();
        }
        let fitting = known.iter().filter(|upstream| is_model(billed, upstream));
        fitting.max_by_key(|upstream| upstream.len()).map_or(billed, |upstream| upstream).to_owned()
    };
    let mut comparison = Comparison::new();
    for ((day, billed), amount) in bill {
        let line = comparison.entry((*day, meant(billed))).or_default();
        line.theirs = Some(line.theirs.map_or(*amount, |before| sum(before, *amount)));
    }
    let named: Vec<String> = comparison.keys().map(|(_, model)| model.clone()).collect();
    let concerned = |provider: &str| {
        let mut of_it = ours.iter().filter(|calls| calls.provider == provider);
        if providers.is_empty() {
            of_it.any(|calls| named.contains(&calls.upstream))
        } else {
            providers.iter().any(|wanted| wanted == provider)
        }
    };
    for calls in ours.iter().filter(|calls| concerned(&calls.provider)) {
        let line = comparison.entry((calls.day, calls.upstream.clone())).or_default();
        match &calls.wasted {
            None => line.committed.add(&calls.sums),
            Some(why) => line.wasted.entry(why.clone()).or_default().add(&calls.sums),
        }
    }
    comparison
}

fn sum(one: Billed, two: Billed) -> Billed {
    let tokens = match (one.tokens, two.tokens) {
        (Some(one), Some(two)) => Some(one.plus(two)),
        (told, None) | (None, told) => told,
    };
    let cost = match (one.cost, two.cost) {
        (Some(one), Some(two)) => Some(one.saturating_add(two)),
        (told, None) | (None, told) => told,
    };
    Billed { tokens, cost, lines: one.lines.saturating_add(two.lines) }
}

impl Line {
    /// All our calls.
    pub fn ours(&self) -> CallSums {
        let mut all = self.committed;
        self.wasted.values().for_each(|wasted| all.add(wasted));
        all
    }

    /// What the provider counts beyond our calls, by kind; `None` where it tells no tokens.
    pub fn tokens_beyond(&self) -> Option<TokenSums> {
        match self.theirs {
            Some(theirs) => theirs.tokens.map(|tokens| tokens.minus(self.ours().tokens)),
            None => Some(TokenSums::default().minus(self.ours().tokens)),
        }
    }

    /// What the provider asks for beyond our calls, in US dollars; `None` where it tells no cost.
    pub fn cost_beyond(&self) -> Option<Decimal> {
        self.theirs?.cost.map(|cost| cost.saturating_sub(self.ours().cost))
    }

    /// Whether it agrees, where `tolerance` (a share: 0.01 is one in a hundred) is no difference.
    pub fn verdict(&self, tolerance: Decimal) -> Verdict {
        let (ours, mut more, mut less) = (self.ours(), false, false);
        if let Some(beyond) = self.tokens_beyond() {
            for ((_, beyond), (_, counted)) in beyond.kinds().iter().zip(ours.tokens.kinds()) {
                let allowed = decimal(counted) * tolerance;
                more |= decimal(*beyond) > allowed;
                less |= decimal(*beyond) < -allowed;
            }
        }
        if let Some(beyond) = self.cost_beyond() {
            let lines = self.theirs.map_or(0, |theirs| theirs.lines);
            let allowed = ours.cost * tolerance + ROUNDING * Decimal::from(lines);
            more |= beyond > allowed;
            less |= beyond < -allowed;
        }
        match (more, less, ours.unknown) {
            (false, false, _) => Verdict::Agrees,
            (true, false, 1..) => Verdict::Unknown,
            _ => Verdict::Differs,
        }
    }
}

/// As many as a decimal holds, which is more than there are.
fn decimal(tokens: i128) -> Decimal {
    Decimal::try_from_i128_with_scale(tokens, 0).unwrap_or(Decimal::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day() -> NaiveDate {
        "2026-08-05".parse().unwrap()
    }

    fn tokens(input: i128, output: i128) -> TokenSums {
        TokenSums { input, output, ..TokenSums::default() }
    }

    fn billed(input: i128, output: i128) -> Billed {
        Billed { tokens: Some(tokens(input, output)), cost: None, lines: 1 }
    }

    fn bill(lines: &[(&str, Billed)]) -> Bill {
        lines.iter().map(|(model, billed)| ((day(), (*model).to_owned()), *billed)).collect()
    }

    fn calls(provider: &str, upstream: &str, wasted: Option<&str>, sums: CallSums) -> OurCalls {
        OurCalls {
            day: day(),
            provider: provider.to_owned(),
            upstream: upstream.to_owned(),
            wasted: wasted.map(str::to_owned),
            sums,
        }
    }

    fn known(input: i128, output: i128, cents: i64) -> CallSums {
        let cost = Decimal::new(cents, 2);
        CallSums { calls: 1, tokens: tokens(input, output), cost, unknown: 0 }
    }

    fn unknown() -> CallSums {
        CallSums { calls: 1, unknown: 1, ..CallSums::default() }
    }

    fn only(comparison: &Comparison) -> &Line {
        assert_eq!(comparison.len(), 1, "{comparison:?}");
        comparison.first_key_value().unwrap().1
    }

    #[test]
    fn what_was_wasted_is_billed_as_well() {
        let ours = [
            calls("main", "m", None, known(100, 10, 5)),
            calls("main", "m", Some("invalid"), known(20, 2, 1)),
        ];
        let compared =
            compare(&bill(&[("m-20260101", billed(120, 12))]), &ours, &BTreeMap::new(), &[]);
        let line = only(&compared);
        assert_eq!(line.verdict(Decimal::ZERO), Verdict::Agrees);
        assert_eq!((line.committed.calls, line.wasted["invalid"].calls), (1, 1));
        assert_eq!(line.ours().cost, Decimal::new(6, 2));
    }

    #[test]
    fn an_unknown_call_explains_more_and_never_less() {
        let verdict = |theirs, also: Option<CallSums>| {
            let mut ours = vec![calls("main", "m", None, known(100, 10, 5))];
            ours.extend(also.map(|sums| calls("main", "m", Some("timeout"), sums)));
            let compared = compare(&bill(&[("m", theirs)]), &ours, &BTreeMap::new(), &[]);
            only(&compared).verdict(Decimal::ZERO)
        };
        assert_eq!(verdict(billed(150, 10), None), Verdict::Differs);
        assert_eq!(verdict(billed(150, 10), Some(unknown())), Verdict::Unknown);
        assert_eq!(verdict(billed(100, 10), Some(unknown())), Verdict::Agrees);
        assert_eq!(verdict(billed(99, 10), Some(unknown())), Verdict::Differs);
        assert_eq!(verdict(billed(150, 9), Some(unknown())), Verdict::Differs);
    }

    #[test]
    fn what_only_one_side_has_differs() {
        let none = BTreeMap::new();
        let ours = [calls("main", "m", None, known(1, 1, 1))];
        let compared =
            compare(&bill(&[("m", billed(1, 1)), ("other", billed(1, 0))]), &ours, &none, &[]);
        let verdicts: Vec<_> = compared.values().map(|line| line.verdict(Decimal::ZERO)).collect();
        assert_eq!(verdicts, [Verdict::Agrees, Verdict::Differs]);

        // Another provider's models are not this export's; where asked for, they are.
        let ours = [ours[0].clone(), calls("second", "n", None, known(1, 1, 1))];
        let export = bill(&[("m", billed(1, 1))]);
        assert_eq!(compare(&export, &ours, &none, &[]).len(), 1);
        let both = ["main".to_owned(), "second".to_owned()];
        let compared = compare(&export, &ours, &none, &both);
        let verdicts: Vec<_> = compared.values().map(|line| line.verdict(Decimal::ZERO)).collect();
        assert_eq!(verdicts, [Verdict::Agrees, Verdict::Differs]);
    }

    #[test]
    fn an_amount_beyond_all_reason_differs() {
        for cost in [Decimal::MAX, Decimal::MIN] {
            let theirs = Billed { tokens: None, cost: Some(cost), lines: 1 };
            for ours in [5, -5] {
                let ours = [calls("main", "m", None, known(1, 1, ours))];
                let compared = compare(&bill(&[("m", theirs)]), &ours, &BTreeMap::new(), &[]);
                assert_eq!(only(&compared).verdict(Decimal::ONE), Verdict::Differs);
            }
        }
    }

    #[test]
    fn amounts_may_be_rounded_to_cents_and_shares_may_be_tolerated() {
        let cost =
            |cents, lines| Billed { tokens: None, cost: Some(Decimal::new(cents, 2)), lines };
        let ours =
            [calls("main", "m", None, CallSums { cost: Decimal::new(1_004, 3), ..known(0, 0, 0) })];
        let verdict = |theirs, tolerance| {
            let names = BTreeMap::from([("Model M".to_owned(), "m".to_owned())]);
            let compared = compare(&bill(&[("Model M", theirs)]), &ours, &names, &[]);
            only(&compared).verdict(tolerance)
        };
        assert_eq!(verdict(cost(100, 1), Decimal::ZERO), Verdict::Agrees);
        assert_eq!(verdict(cost(102, 1), Decimal::ZERO), Verdict::Differs);
        assert_eq!(verdict(cost(102, 4), Decimal::ZERO), Verdict::Agrees);
        assert_eq!(verdict(cost(102, 1), Decimal::new(2, 2)), Verdict::Agrees);
    }
}
