//! Files made to hurt: each ends in a refusal, whoever reads a good one beside it notices nothing, and
//! no child is left.

use std::path::Path;
use std::time::Duration;

use chrono::Utc;
use oncekey::clock::{Clock, ManualClock};
use oncekey::documents::UnreadableReason::TooComplex;
use oncekey::documents::{Document, ReadLimits, Unreadable};

use crate::support::pdf;
use crate::support::provider::fixture;
use crate::support::reader::Reader;

const A4: &str = "0 0 595 842";
const SPEECH: &[u8] = b"BT /F1 12 Tf 72 720 Td (MARA: yes) Tj ET ";

/// Less than by default, so that what runs into its limits does so soon.
fn tight() -> ReadLimits {
    ReadLimits { cpu: Duration::from_secs(1), memory_bytes: 400 << 20, ..ReadLimits::default() }
}

fn too_complex() -> Result<Document, Unreadable> {
    Err(Unreadable::Refused(TooComplex))
}

fn speech() -> Result<Document, Unreadable> {
    Ok(Document::Text { text: "MARA: yes\n".to_owned(), pages_left_out: 0 })
}

fn endless() -> Vec<u8> {
    pdf::page(b"/G Do", "/XObject << /G 6 0 R >>", A4, &pdf::endless_forms(12))
}

/// A PNG of one chunk more than a head of these dimensions.
fn png(width: u32, height: u32, depth_and_colour: [u8; 2], kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let mut head = [width.to_be_bytes(), height.to_be_bytes()].concat();
    head.extend(depth_and_colour);
    head.extend([0; 3]);
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    for (kind, data) in [(b"IHDR", head.as_slice()), (kind, data), (b"IEND", &[])] {
        file.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
        file.extend(kind.as_slice());
        file.extend(data);
        file.extend(crc(&[kind.as_slice(), data].concat()).to_be_bytes());
    }
    file
}

fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    })
}

#[tokio::test]
async fn a_hostile_file_is_refused_while_a_good_one_is_read_beside_it() {
    let reader = Reader::new("hostile", tight(), 2);
    let functions: Vec<Vec<u8>> = std::iter::once(
        "<< /ShadingType 2 /ColorSpace /DeviceGray \
         /Coords [0 0 1 1] /Function 7 0 R >>"
            .to_owned(),
    )
    .chain((8..20_000).map(|next| {
        format!(
            "<< /FunctionType 3 /Domain [0 1] /Functions [{next} 0 R] /Bounds [] /Encode [0 1] >>"
        )
    }))
    .chain(["<< /FunctionType 2 /Domain [0 1] /N 1 >>".to_owned()])
    .map(String::into_bytes)
    .collect();
    let shaded = [b"/S sh ".as_slice(), SPEECH].concat();
    let packed = pdf::stream(&pdf::zeros(4 << 20), "/Filter /FlateDecode");
    let profile = [b"x\0\0".as_slice(), &pdf::zeros(1 << 20)].concat();
    let cases = [
        ("forms that paint forms for ever", endless()),
        (
            "a chain of functions that overflows the stack",
            pdf::page(&shaded, "/Shading << /S 6 0 R >>", A4, &functions),
        ),
        ("a page that unpacks to 660 MB", pdf::page_with(packed, "", A4, &[])),
        ("a picture of 60,000 by 60,000", png(60_000, 60_000, [8, 2], b"IDAT", &[])),
        ("a picture larger than memory", png(8_000, 8_000, [16, 6], b"IDAT", &pdf::zeros(1000))),
        ("a picture with a colour profile of 166 MB", png(1, 1, [8, 0], b"iCCP", &profile)),
    ];
    for (what, file) in cases {
        let (hostile, good) =
            tokio::join!(reader.read(file), reader.fixture("upload/two_lines.pdf", false));
        assert_eq!(hostile, too_complex(), "{what}");
        assert!(matches!(good, Ok(Document::Text { .. })), "beside {what}: {good:?}");
        assert!(reader.children().is_empty(), "{what}");
    }
}

#[tokio::test]
async fn what_only_looks_hostile_is_read_in_bounded_time_and_space() {
    let reader = Reader::new("odd", ReadLimits::default(), 2);
    let nested = [b"[".repeat(1_000_000).as_slice(), b"]".repeat(1_000_000).as_slice()].concat();
    let own_form = pdf::form("/G Do", "/XObject << /G 6 0 R >>");
    let twice = [b"/G Do ".as_slice(), SPEECH].concat();
    for (what, file) in [
        ("an array nested a million deep", pdf::page(SPEECH, "/X 6 0 R", A4, &[nested])),
        ("a reference to itself", pdf::page(SPEECH, "/X 6 0 R", A4, &[b"6 0 R".to_vec()])),
        (
            "a form that paints itself",
            pdf::page(&twice, "/XObject << /G 6 0 R >>", A4, &[own_form]),
        ),
    ] {
        assert_eq!(reader.read(file).await, speech(), "{what}");
    }
    for (what, media_box) in [
        ("a page of 20,000 km", "0 0 60000000000 60000000000"),
        ("a page like a hair", "0 0 1000000 0.1"),
        ("a page inside out", "9 9 -9 -9"),
    ] {
        let file = pdf::page(b"0 0 100 100 re f", "", media_box, &[]);
        let Ok(Document::Pages(pages)) = reader.read(file).await else { panic!("{what}") };
        assert!(pages.iter().all(|page| page.width <= 2000 && page.height <= 2000), "{what}");
    }
}

#[tokio::test]
async fn more_than_the_limits_allow_is_too_complex() {
    let lines = b"0 -3 Td (MARA: yes) Tj ".repeat(200);
    let text =
        pdf::page(&[b"BT /F1 3 Tf 72 800 Td ", lines.as_slice(), b"ET"].concat(), "", A4, &[]);
    let limits = ReadLimits { text_bytes: 100, ..ReadLimits::default() };
    assert_eq!(Reader::new("much", limits, 1).read(text.clone()).await, too_complex());
    let whole = "MARA: yes\n".repeat(200);
    let read = Reader::new("much2", ReadLimits::default(), 1).read(text).await;
    assert_eq!(read, Ok(Document::Text { text: whole, pages_left_out: 0 }));

    let limits = ReadLimits { max_pages: 0, ..ReadLimits::default() };
    let scan = fixture("upload/scanned_no_text_layer.pdf");
    assert_eq!(Reader::new("pages", limits, 1).read(scan.clone()).await, too_complex());
    let limits = ReadLimits { pictures_bytes: 1000, ..ReadLimits::default() };
    assert_eq!(Reader::new("bytes", limits, 1).read(scan).await, too_complex());
}

#[tokio::test]
async fn a_child_that_never_stops_talking_is_cut_off() {
    let limits =
        ReadLimits { text_bytes: 1 << 20, pictures_bytes: 1 << 20, ..ReadLimits::default() };
    let reader = Reader::with("talk", Path::new("/usr/bin/yes"), Clock::system(), limits, 1);
    assert_eq!(reader.read(fixture("upload/two_lines.pdf")).await, too_complex());
    assert!(reader.children().is_empty());
}

#[tokio::test]
async fn a_program_that_cannot_read_is_our_fault_and_not_the_files() {
    for (name, program) in
        [("none", "/nonexistent"), ("false", "/bin/false"), ("true", "/bin/true")]
    {
        let reader =
            Reader::with(name, Path::new(program), Clock::system(), ReadLimits::default(), 1);
        let read = reader.read(fixture("upload/two_lines.pdf")).await;
        assert!(matches!(read, Err(Unreadable::Ours(_))), "{program}: {read:?}");
        assert!(reader.children().is_empty());
    }
}

#[tokio::test]
async fn a_child_that_gets_no_time_is_ended_and_says_nothing_of_its_file() {
    let manual = ManualClock::new(Utc::now());
    let limits = ReadLimits { wall: Duration::from_secs(90), ..ReadLimits::default() };
    let program = Path::new(env!("CARGO_BIN_EXE_oncekey"));
    let reader = Reader::with("wall", program, manual.clock(), limits, 1);
    let moved = async {
        manual.until_sleeping_for(Duration::from_secs(90)).await;
        reader.until_reading().await;
        manual.advance(Duration::from_secs(90));
    };
    let (read, ()) = tokio::join!(reader.read(endless()), moved);
    assert!(matches!(read, Err(Unreadable::Ours(_))), "{read:?}");
    assert!(reader.children().is_empty());
}

#[tokio::test]
async fn a_child_that_is_killed_from_outside_says_nothing_of_its_file() {
    for (name, signal) in [("term", libc::SIGTERM), ("kill", libc::SIGKILL)] {
        let reader = Reader::new(name, ReadLimits::default(), 1);
        let killed = async {
            reader.until_reading().await;
            for child in reader.children() {
                // SAFETY: a signal to a child of this test.
                unsafe { libc::kill(child, signal) };
            }
        };
        let (read, ()) = tokio::join!(reader.read(endless()), killed);
        assert!(matches!(read, Err(Unreadable::Ours(_))), "{read:?}");
        assert!(reader.children().is_empty());
    }
}

#[tokio::test]
async fn a_reading_that_nobody_waits_for_any_more_leaves_no_child() {
    let reader = Reader::new("drop", ReadLimits::default(), 1);
    tokio::select! {
        read = reader.read(endless()) => panic!("{read:?}"),
        () = reader.until_reading() => {}
    }
    reader.until_gone().await;
    // Its place is free again.
    assert_eq!(reader.read(pdf::page(SPEECH, "", A4, &[])).await, speech());
}

#[tokio::test]
async fn no_more_children_run_than_may() {
    let reader = Reader::new("places", ReadLimits::default(), 1);
    let mut next = std::pin::pin!(reader.read(pdf::page(SPEECH, "", A4, &[])));
    {
        let mut first = std::pin::pin!(reader.read(endless()));
        tokio::select! {
            biased;
            read = &mut first => panic!("{read:?}"),
            read = &mut next => panic!("{read:?}"),
            () = reader.until_reading() => {}
        }
        assert_eq!(reader.children().len(), 1);
    }
    assert_eq!(next.await, speech());
}

#[tokio::test]
async fn a_child_knows_no_secret_and_can_open_nothing() {
    let reader = Reader::new("alone", ReadLimits::default(), 1);
    let looked = async {
        reader.until_reading().await;
        let child = reader.children()[0];
        let read = |what: &str| std::fs::read_to_string(format!("/proc/{child}/{what}")).unwrap();
        assert_eq!(read("environ"), "");
        assert_eq!(std::fs::read_link(format!("/proc/{child}/cwd")).unwrap(), Path::new("/"));
        let limits = read("limits");
        for (limit, most) in [
            ("Max open files", "3"),
            ("Max file size", "0"),
            ("Max core file size", "0"),
            ("Max processes", "0"),
            ("Max cpu time", "60"),
            ("Max address space", "1073741824"),
        ] {
            let line = limits.lines().find_map(|line| line.strip_prefix(limit)).unwrap();
            assert_eq!(line.split_whitespace().next(), Some(most), "{limit}");
        }
        // Of the process group of the server, a Ctrl-C at its terminal would reach it.
        let stat = read("stat");
        let group = stat.rsplit(") ").next().unwrap().split(' ').nth(2).unwrap();
        assert_eq!(group, child.to_string());
    };
    tokio::select! {
        read = reader.read(endless()) => panic!("{read:?}"),
        () = looked => {}
    }
    reader.until_gone().await;
}
