//! Where texts are cut.

use super::*;
use proptest::prelude::*;

const TURN: &str = include_str!("../../../tests/fixtures/texts/turn_across_12000.txt");
const EMOJI: &str = include_str!("../../../tests/fixtures/texts/emoji_on_12000.txt");
const HIDDEN: &str = include_str!("../../../tests/fixtures/texts/bom_crlf_rtl.txt");

fn texts(text: &str, limit: usize) -> Vec<&str> {
    chunk(text, limit).iter().map(|chunk| chunk.text(text)).collect()
}

fn check(text: &str, limit: usize, chunks: &[Chunk]) {
    let (mut at, mut chars) = (0, 0);
    for (index, chunk) in chunks.iter().enumerate() {
        assert_eq!((chunk.index, chunk.bytes.start, chunk.from), (index, at, chars));
        assert_eq!(chunk.text(text).chars().count(), chunk.chars());
        assert!((1..=limit).contains(&chunk.chars()), "{} of {limit}", chunk.chars());
        (at, chars) = (chunk.bytes.end, chunk.to);
        assert!(limit < 2 || !within_line_end(text, at));
    }
    assert_eq!((at, chars), (text.len(), text.chars().count()));
}

#[test]
fn the_border_moves_back_to_the_start_of_a_speech() {
    let chunks = chunk(TURN, 12_000);
    check(TURN, 12_000, &chunks);
    let [first, second] = &chunks[..] else { panic!("{}", chunks.len()) };
    assert_eq!((first.to, first.bytes.end), (9_384, 9_384), "not at 12,000, within MARA's speech");
    assert!(second.text(TURN).starts_with("MARA: "));
    assert_eq!((&first.carried, &second.carried), (&None, &None));
}

#[test]
fn a_text_with_no_place_to_cut_is_cut_between_characters() {
    let chunks = chunk(EMOJI, 12_000);
    check(EMOJI, 12_000, &chunks);
    assert_eq!(chunks.iter().map(Chunk::chars).collect::<Vec<_>>(), [12_000, 500]);
    assert!(chunks[0].text(EMOJI).ends_with("a🫖"), "the limit counts characters");
    assert_eq!(texts(EMOJI, 11_999)[1].chars().next(), Some('🫖'));
}

#[test]
fn what_is_one_character_to_the_eye_stays_whole() {
    let family = "👨‍👩‍👧‍👦";
    let text = format!("{}{family}x", "a".repeat(8));
    assert_eq!(texts(&text, 12)[0], "a".repeat(8), "six characters would have been cut");
    let accents = format!("{}e\u{301}x", "a".repeat(8));
    assert_eq!(texts(&accents, 9)[0], "a".repeat(8));
    assert_eq!(texts("aaa\r\nbbb", 4)[0], "aaa");
    let endless = "e".to_owned() + &"\u{301}".repeat(1_000);
    check(&endless, 100, &chunk(&endless, 100));
}

#[test]
fn the_best_place_in_the_second_half_is_taken() {
    for (text, first) in [
        // A speech before anything else, and the last of them.
        ("aaaa aaaa\nANN: bb\nBEN: cc\n\ndd ee ff gg", "aaaa aaaa\nANN: bb\n"),
        ("aaaa aaaa aaa\n\nbbb\nccc dddd eeee ffff", "aaaa aaaa aaa\n\n"),
        ("aaaa aaaa aaaa\nbbbb cccc dddd eeee", "aaaa aaaa aaaa\n"),
        ("aaaa aaaa aaaa bbbb cccc dddd eeee", "aaaa aaaa aaaa bbbb "),
        // One in the first half would leave a tiny chunk.
        ("aa\nANN: bbbb cccc dddd eeee ffff", "aa\nANN: bbbb cccc "),
        // A name alone goes with what is said below it, also with other line ends.
        ("aaaa aaaa aa\r\n\r\nANN\r\nbbbb cccc dddd", "aaaa aaaa aa\r\n\r\n"),
        ("aaaa aaaa aa\r\rANN\rbbbb cccc dddd", "aaaa aaaa aa\r\r"),
    ] {
        assert_eq!(texts(text, 21)[0], first, "{text:?}");
    }
    assert_eq!(chunk("", 10), []);
    assert_eq!(texts("MARA: yes", 9), ["MARA: yes"]);
}

#[test]
fn the_speaker_of_a_long_speech_goes_along() {
    let text = format!("OTTO: no\nLADY MACBETH\n{}\nANN: yes\n", "out, out ".repeat(30));
    let chunks = chunk(&text, 100);
    check(&text, 100, &chunks);
    let carried: Vec<_> = chunks.iter().map(|chunk| chunk.carried.as_deref()).collect();
    let lady = Some("LADY MACBETH");
    assert_eq!(carried, [None, lady, lady, None], "over as many chunks as it is long");

    // A name right above the border speaks behind it.
    let text = format!("OTTO: no\n{}\nMARA\n{}", "b".repeat(80), "c".repeat(60));
    let whole = chunk(&text, 1_000).remove(0);
    assert_eq!(speaker_behind(&text, 0..95, None).as_deref(), Some("MARA"));
    assert_eq!(speaker_behind(&text, 0..text.len(), None), None);
    assert_eq!(halves(&text, &whole).unwrap()[1].carried, None);
    let prose = "so it went and went ".repeat(30);
    assert!(chunk(&prose, 100).iter().all(|chunk| chunk.carried.is_none()));
}

#[test]
fn halves_are_cut_at_the_best_place_near_the_middle() {
    let chunks = chunk(TURN, 12_000);
    let [a, b] = halves(TURN, &chunks[1]).unwrap();
    assert_eq!((a.index, b.index, a.from, b.to), (1, 1, chunks[1].from, chunks[1].to));
    assert_eq!([a.text(TURN), b.text(TURN)].concat(), chunks[1].text(TURN));
    assert!(b.text(TURN).starts_with("MARA: ") || b.text(TURN).starts_with("OTTO: "));
    let middle = (chunks[1].from + chunks[1].to) / 2;
    assert!(b.from.abs_diff(middle) < 300, "{} and {middle}", b.from);
    assert_eq!((a.carried, b.carried), (None, None));

    let one = Chunk { index: 0, from: 0, to: 1, bytes: 0..2, carried: None };
    assert_eq!(halves("ß", &one), None);
}

#[test]
fn hidden_characters_and_line_ends_are_kept() {
    for limit in 1..90 {
        let chunks = chunk(HIDDEN, limit);
        check(HIDDEN, limit, &chunks);
    }
    assert_eq!(texts(HIDDEN, 50)[1].lines().next(), Some("\u{202e}MARA: backwards\u{202c}"));
}

/// A line without an end, and very many lines, are looked at a few times, not once for each border.
#[test]
fn long_texts_are_cut_in_linear_time() {
    for text in ["x".repeat(300_000), "MARA: a\n".repeat(20_000), "\n".repeat(60_000)] {
        let chunks = chunk(&text, 100);
        assert!(
            (text.len() / 100..=text.len() / 50 + 1).contains(&chunks.len()),
            "{}",
            chunks.len()
        );
        check(&text, 100, &chunks);
    }
}

fn scripts() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("MARA: ".to_owned()),
        Just("OTTO\n".to_owned()),
        Just("\r\n".to_owned()),
        Just("\n\n".to_owned()),
        Just("\r".to_owned()),
        Just("🫖👨‍👩‍👧".to_owned()),
        Just(" ".to_owned()),
        Just("e\u{301}".to_owned()),
        "[a-zא-ת]{1,9}",
        any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(piece, 0..80).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn joined_chunks_are_the_text(text in scripts(), limit in 1usize..60) {
        let chunks = chunk(&text, limit);
        check(&text, limit, &chunks);
        let least = text.chars().count().div_ceil(limit);
        prop_assert!(chunks.len() <= 2 * least + 1, "{} of {}", chunks.len(), least);
    }

    #[test]
    fn halves_joined_are_the_chunk(text in scripts(), limit in 1usize..60) {
        for chunk in chunk(&text, limit) {
            let Some([a, b]) = halves(&text, &chunk) else {
                prop_assert!(chunk.chars() < 2);
                continue;
            };
            prop_assert_eq!((a.from, b.to), (chunk.from, chunk.to));
            prop_assert_eq!((a.to, a.bytes.end), (b.from, b.bytes.start));
            prop_assert_eq!([a.text(&text), b.text(&text)].concat(), chunk.text(&text));
            prop_assert_eq!(a.text(&text).chars().count(), a.chars());
            prop_assert!(a.chars() > 0 && b.chars() > 0);
            prop_assert_eq!(a.carried, chunk.carried);
        }
    }
}
