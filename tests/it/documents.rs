//! Uploads: what they are is decided by their bytes, what they say comes out whole, and what cannot be
//! read is refused for a reason.

use bytes::Bytes;
use image::{ImageFormat, Rgb, RgbImage};
use oncekey::documents::UnreadableReason::{Broken, Empty, NoPages, NoTextLayer, PasswordRequired};
use oncekey::documents::{Document, PageImage, ReadLimits, Unreadable};

use crate::support::pdf;
use crate::support::provider::fixture;
use crate::support::reader::Reader;

const TWO_LINES: &str = "MARA: Is it boiling?\nOTTO: Not yet.\n";

fn text(text: &str) -> Result<Document, Unreadable> {
    Ok(Document::Text { text: text.to_owned(), pages_left_out: 0 })
}

fn reader(name: &str) -> Reader {
    Reader::new(name, ReadLimits::default(), 2)
}

fn only_page(document: Document) -> PageImage {
    let Document::Pages(pages) = document else { panic!("{document:?}") };
    <[PageImage; 1]>::try_from(pages).unwrap().into_iter().next().unwrap()
}

#[tokio::test]
async fn a_pdf_with_text_gives_its_lines() {
    let reader = reader("lines");
    for name in ["two_lines.pdf", "pdf_named.jpg", "encrypted_owner_only.pdf"] {
        for images in [true, false] {
            let read = reader.fixture(&format!("upload/{name}"), images).await;
            assert_eq!(read, text(TWO_LINES), "{name}");
        }
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_for_its_reason() {
    let reader = reader("reasons");
    for (name, images, reason) in [
        ("upload/encrypted_user_password.pdf", true, PasswordRequired),
        ("upload/zero_bytes.pdf", true, Empty),
        ("upload/header_only.pdf", true, Broken),
        ("upload/truncated_middle.pdf", true, Broken),
        ("upload/no_pages.pdf", true, NoPages),
        ("upload/scanned_no_text_layer.pdf", false, NoTextLayer),
        ("upload/page.jpg", false, NoTextLayer),
        ("texts/only_whitespace.txt", true, Empty),
    ] {
        let read = reader.fixture(name, images).await;
        assert_eq!(read, Err(Unreadable::Refused(reason)), "{name}");
    }
    let heic = reader.fixture("upload/heic_header_named.jpg", true).await;
    assert_eq!(heic, Err(Unreadable::Unsupported { what: "a HEIC picture" }));
}

#[tokio::test]
async fn a_pdf_cut_anywhere_is_broken_and_never_a_shorter_one() {
    let whole = fixture("upload/two_lines.pdf");
    let reader = reader("cut");
    // Short of the five bytes that every reader does without.
    for length in (10..whole.len() - 20).step_by(47) {
        let read = reader.read(whole[..length].to_vec()).await;
        assert_eq!(read, Err(Unreadable::Refused(Broken)), "the first {length} bytes");
    }
}

#[tokio::test]
async fn plain_text_is_decoded() {
    let reader = reader("plain");
    let quotes = reader.fixture("texts/cp1252_quotes.txt", false).await;
    assert_eq!(quotes, text("MARA: “Is it boiling?”\nOTTO: ‘Not yet’ — wait.\n"));
    let Ok(Document::Text { text, .. }) = reader.fixture("texts/bom_crlf_rtl.txt", false).await
    else {
        panic!("refused");
    };
    assert!(
        text.starts_with("MARA: ") && text.contains("\nאוטו: ") && !text.contains('\r'),
        "{text}"
    );
}

#[tokio::test]
async fn pictures_go_on_as_they_came_under_their_true_type() {
    let reader = reader("pictures");
    for (name, media_type) in
        [("jpeg_named.png", PageImage::JPEG), ("png_named.jpg", PageImage::PNG)]
    {
        let name = format!("upload/{name}");
        let page = only_page(reader.fixture(&name, true).await.unwrap());
        let (width, height, bytes) = (400, 200, Bytes::from(fixture(&name)));
        assert_eq!(page, PageImage { media_type, bytes, width, height });
    }
}

#[tokio::test]
async fn a_photo_that_lies_on_its_side_is_put_upright() {
    let reader = reader("upright");
    let page = only_page(reader.fixture("upload/rotated_exif6.jpg", true).await.unwrap());
    assert_eq!((page.media_type, page.width, page.height), (PageImage::JPEG, 400, 200));
    let upright = image::load_from_memory(&fixture("upload/page.jpg")).unwrap().into_rgb8();
    let turned = image::load_from_memory(&page.bytes).unwrap().into_rgb8();
    assert_eq!(turned.dimensions(), upright.dimensions());
    let distances = turned.iter().zip(upright.iter()).map(|(a, b)| u64::from(a.abs_diff(*b)));
    let mean = distances.sum::<u64>() / u64::from(400_u32 * 200 * 3);
    assert!(mean < 4, "differs by {mean} of 255");
}

#[tokio::test]
async fn a_picture_that_is_too_long_for_the_vendor_is_scaled_down() {
    let mut bytes = Vec::new();
    let picture = RgbImage::from_pixel(3000, 150, Rgb([200, 10, 10]));
    picture.write_to(&mut std::io::Cursor::new(&mut bytes), ImageFormat::Png).unwrap();
    let page = only_page(reader("long").read(bytes).await.unwrap());
    assert_eq!((page.media_type, page.width, page.height), (PageImage::JPEG, 2000, 100));
    let scaled = image::load_from_memory(&page.bytes).unwrap().into_rgb8();
    assert!(scaled.pixels().all(|Rgb([red, green, _])| *red > 180 && *green < 30));
}

#[tokio::test]
async fn a_damaged_picture_is_broken() {
    let reader = reader("damaged");
    for name in ["upload/png_named.jpg", "upload/page.jpg"] {
        let whole = fixture(name);
        let read = reader.read(whole[..100].to_vec()).await;
        assert_eq!(read, Err(Unreadable::Refused(Broken)), "{name}");
    }
}

#[tokio::test]
async fn a_scan_gives_its_pages_as_pictures() {
    let read = reader("scan").fixture("upload/scanned_no_text_layer.pdf", true).await;
    let page = only_page(read.unwrap());
    assert_eq!((page.media_type, page.height), (PageImage::JPEG, 2000));
    let painted = image::load_from_memory(&page.bytes).unwrap().into_luma8();
    // Dark letters on white paper.
    let dark = painted.pixels().filter(|pixel| pixel.0[0] < 100).count();
    assert!(dark > 500 && dark * 10 < painted.pixels().len(), "{dark} dark pixels");
}

#[tokio::test]
async fn a_page_that_only_shows_is_counted_beside_those_that_speak() {
    let speech = "BT /F1 12 Tf 72 720 Td (MARA: Is it boiling?) Tj ET";
    let pages = [("0 0 300 300 re f", 5), (speech, 6), (speech, 7)];
    let mut objects = vec![
        b"<< /Type /Catalog /Pages 2 0 R >>".to_vec(),
        b"<< /Type /Pages /Kids [8 0 R 9 0 R 10 0 R] /Count 3 >>".to_vec(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>".to_vec(),
        b"null".to_vec(),
    ];
    objects.extend(pages.map(|(content, _)| pdf::stream(content.as_bytes(), "")));
    objects.extend(pages.map(|(_, content)| {
        format!(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {content} 0 R \
             /Resources << /Font << /F1 3 0 R >> >> >>"
        )
        .into_bytes()
    }));
    let read = reader("cover").read(pdf::document(&objects)).await.unwrap();
    let text = "MARA: Is it boiling?\n".repeat(2);
    assert_eq!(read, Document::Text { text, pages_left_out: 1 });
}
