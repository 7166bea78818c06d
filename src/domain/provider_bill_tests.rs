//! Exports as vendors write them, and what is wrong with others.

use super::*;

fn read(text: &str) -> Result<(&'static str, Bill), BillError> {
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let mut reader = BillReader::new(lines.next().unwrap())?;
    for (number, cells) in (2..).zip(lines) {
        reader.line(number, &cells)?;
    }
    Ok((reader.name(), reader.bill()?))
}

fn only(bill: &Bill) -> (&str, Billed) {
    assert_eq!(bill.len(), 1);
    let ((day, model), billed) = bill.first_key_value().unwrap();
    assert_eq!(day.to_string(), "2026-08-05");
    (model, *billed)
}

#[test]
fn each_export_is_known_by_its_columns() {
    let (name, bill) = read(
        "\u{feff}usage_date_utc,model_version,api_key,usage_input_tokens_no_cache,usage_input_tokens_cache_write_5m,usage_input_tokens_cache_write_1h,usage_input_tokens_cache_read,usage_output_tokens,web_search_count\n\
        2026-08-05,claude-x,one,100,20,3,7,50,0\n\
        2026-08-05,claude-x,two,1,0,0,0,2,0",
    )
    .unwrap();
    let tokens = TokenSums { input: 101, cache_read: 7, cache_write: 23, output: 52 };
    assert_eq!(name, "Anthropic usage");
    assert_eq!(only(&bill), ("claude-x", Billed { tokens: Some(tokens), cost: None, lines: 2 }));

    let (name, bill) = read(
        "usage_date_utc,model,workspace,token_type,cost_usd,cost_type\n\
        2026-08-05,Claude X,Default,input_no_cache,0.05,token\n\
        2026-08-05,Claude X,Default,output,1.25,token",
    )
    .unwrap();
    assert_eq!(name, "Anthropic cost");
    let cost = Some(Decimal::new(130, 2));
    assert_eq!(only(&bill), ("Claude X", Billed { tokens: None, cost, lines: 2 }));

    let (name, bill) = read(
        "start_time,end_time,start_time_iso,end_time_iso,num_model_requests,model,input_tokens,output_tokens,input_cached_tokens\n\
        1785888000,1785974400,2026-08-05T00:00:00+00:00,2026-08-06T00:00:00+00:00,3,gpt-x,100,9,40\n\
        1785974400,1786060800,2026-08-06T00:00:00+00:00,2026-08-07T00:00:00+00:00,,,,,",
    )
    .unwrap();
    assert_eq!(name, "OpenAI usage");
    let tokens = TokenSums { input: 60, cache_read: 40, cache_write: 0, output: 9 };
    assert_eq!(only(&bill).1.tokens, Some(tokens));
    let (_, same) =
        read("start_time,model,input_tokens,output_tokens,input_cached_tokens\n1785888000,gpt-x,100,9,40")
            .unwrap();
    assert_eq!(only(&same).1.tokens, Some(tokens));

    let (name, bill) =
        read("Day,Model,input_tokens,output_tokens,cost_usd\n2026-08-05,m,1,2,0.000000001")
            .unwrap();
    assert_eq!(name, "oncekey");
    assert_eq!(only(&bill).1.cost, Some(Decimal::new(1, 9)));
}

#[test]
fn what_nobody_reads_may_be_there_twice_and_empty_cells_may_follow() {
    let (_, bill) = read("note,day,model,cost_usd,note\na,2026-08-05,m,1.25,b,, ").unwrap();
    assert_eq!(only(&bill).1.cost, Some(Decimal::new(125, 2)));
}

#[test]
fn what_cannot_be_read_is_named() {
    let head = "day,model,input_tokens,output_tokens,cost_usd";
    for (text, said) in [
        ("day,model\n2026-08-05,m".to_owned(), "columns are those of no export"),
        ("day,input_tokens,output_tokens\n2026-08-05,1,2".to_owned(), "day, input_tokens"),
        (head.to_owned(), "no lines"),
        (
            format!("{head}\n2026-08-05,m,1,2,0\n2026-08-05,m,x,2,0"),
            "line 3: input_tokens is \"x\"",
        ),
        (format!("{head}\n2026-08-05,m,-1,2,0"), "line 2: input_tokens"),
        (format!("{head}\n2026-08-05,m,1.5,2,0"), "line 2: input_tokens"),
        (format!("{head}\n2026-08-05,m,1,2,$3"), "line 2: cost_usd is \"$3\""),
        (format!("{head}\nAugust,m,1,2,0"), "line 2: day is \"August\""),
        (format!("{head}\n2026-08-05,,1,2,0"), "line 2 names no model"),
        // A decimal comma: read on, it would be a dollar, and its cents gone.
        (format!("{head}\n2026-08-05,m,1,2,1,50"), "line 2 has 6 cells under 5 heads"),
        (format!("{head}\n2026-08-05,m,1"), "line 2 has 3 cells under 5 heads"),
        (
            "day,model,cost_usd,Cost_USD\n2026-08-05,m,1,2".to_owned(),
            "two of its columns are called cost_usd",
        ),
        (
            "start_time,model,input_tokens,output_tokens,input_cached_tokens\n1785888000,g,1,1,2"
                .to_owned(),
            "line 2: 2 of the input were cached",
        ),
    ] {
        let error = read(&text).unwrap_err().to_string();
        assert!(error.contains(said), "{text}: {error}");
    }
}

#[test]
fn a_dated_name_is_its_alias_and_no_other_model() {
    assert!(is_model("claude-haiku-4-5", "claude-haiku-4-5"));
    assert!(is_model("claude-haiku-4-5-20251001", "claude-haiku-4-5"));
    assert!(is_model("gpt-4o-2024-08-06", "gpt-4o"));
    for (billed, upstream) in [
        ("gpt-4o-mini", "gpt-4o"),
        ("gpt-4o-mini-2024-07-18", "gpt-4o"),
        ("gpt-4", "gpt-4o"),
        ("claude-haiku-4-5-2025", "claude-haiku-4-5"),
        ("claude-haiku-4-5", "claude-haiku-4-5-20251001"),
    ] {
        assert!(!is_model(billed, upstream), "{billed} {upstream}");
    }
}
