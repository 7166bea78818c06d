//! The book of prices: what a model cost from when on.
//!
//! It is filled from the configuration, and only grows: a receipt names the row that it was counted with,
//! so the bill of last month says the same next year. Where two nodes with different configurations run
//! side by side each start of one adds what it goes by; a receipt still says which it was.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use sqlx::Connection;

use super::Store;
use super::error::StoreError;
use crate::domain::usage::{PriceId, Prices};

/// Advisory lock of writing into the book, so that nodes that start together add a price once.
const BOOK_LOCK: i64 = 0x6F6B_7072_6963;
/// Where a row of the book comes from.
const CONFIGURATION: &str = "configuration";

/// A model with its prices, as the configuration has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PricedModel {
    /// As clients name it.
    pub name: String,
    pub provider: String,
    /// The vendor's own name of it.
    pub upstream: String,
    pub prices: Prices,
}

impl Store {
    /// Writes down what differs from the newest row of its model, and returns the row of each model that
    /// is good from now on.
    pub async fn book_prices(
        &self,
        models: Vec<PricedModel>,
    ) -> Result<BTreeMap<String, PriceId>, StoreError> {
        self.database
            .run("prices.book", move |connection| {
                let models = models.clone();
                Box::pin(async move {
                    let mut transaction = connection.begin().await?;
                    sqlx::query!(
                        r#"/* prices.lock */ select pg_advisory_xact_lock($1) as "locked!""#,
                        BOOK_LOCK,
                    )
                    .fetch_one(&mut *transaction)
                    .await?;
                    let booked = book(&mut transaction, &models).await?;
                    transaction.commit().await?;
                    Ok(booked)
                })
            })
            .await
    }
}

async fn book(
    connection: &mut sqlx::PgConnection,
    models: &[PricedModel],
) -> Result<BTreeMap<String, PriceId>, StoreError> {
    let text = |of: fn(&PricedModel) -> &String| models.iter().map(of).cloned().collect::<Vec<_>>();
    let price =
        |of: fn(&Prices) -> Decimal| models.iter().map(|it| of(&it.prices)).collect::<Vec<_>>();
    let rows = sqlx::query!(
        r#"/* prices.book */
        with given as (
            select * from unnest($1::text[], $2::text[], $3::text[], $4::numeric[], $5::numeric[],
                $6::numeric[], $7::numeric[]) as g (model, provider, upstream, input, output,
                cache_read, cache_write)),
        newest as (
            select g.model as named, n.* from given g, lateral (
                select * from model_prices p where p.model = g.model
                order by p.from_time desc limit 1) n),
        added as (
            insert into model_prices (model, provider, upstream, input_usd_per_mtok,
                output_usd_per_mtok, cache_read_usd_per_mtok, cache_write_usd_per_mtok, source)
            select g.model, g.provider, g.upstream, g.input, g.output, g.cache_read, g.cache_write, $8
            from given g left join newest n on n.named = g.model
            where (n.provider, n.upstream, n.input_usd_per_mtok, n.output_usd_per_mtok,
                    n.cache_read_usd_per_mtok, n.cache_write_usd_per_mtok)
                is distinct from (g.provider, g.upstream, g.input, g.output, g.cache_read, g.cache_write)
            returning model, price_id)
        select g.model as "model!", coalesce(a.price_id, n.price_id) as "price_id!",
            a.price_id is not null as "added!"
        from given g left join added a on a.model = g.model left join newest n on n.named = g.model"#,
        &text(|model| &model.name),
        &text(|model| &model.provider),
        &text(|model| &model.upstream),
        &price(|prices| prices.input),
        &price(|prices| prices.output),
        &price(|prices| prices.cache_read),
        &price(|prices| prices.cache_write),
        CONFIGURATION,
    )
    .fetch_all(connection)
    .await?;
    for row in rows.iter().filter(|row| row.added) {
        tracing::info!(
            event = "price_booked",
            model = row.model,
            price_id = row.price_id,
            "new prices from now on"
        );
    }
    Ok(rows.into_iter().map(|row| (row.model, PriceId(row.price_id))).collect())
}
