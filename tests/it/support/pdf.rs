//! PDFs made by hand, for whatever no program would write.

use std::fmt::Write;

/// A document of one page. `content` is painted with `resources`, where `/F1` is Helvetica; `more`
/// are objects from number 6 on.
pub fn page(content: &[u8], resources: &str, media_box: &str, more: &[Vec<u8>]) -> Vec<u8> {
    page_with(stream(content, ""), resources, media_box, more)
}

/// The same, where the content is an object as it stands.
pub fn page_with(content: Vec<u8>, resources: &str, media_box: &str, more: &[Vec<u8>]) -> Vec<u8> {
    let page = format!(
        "<< /Type /Page /Parent 2 0 R /MediaBox [{media_box}] /Contents 4 0 R \
         /Resources << /Font << /F1 5 0 R >> {resources} >> >>"
    );
    let mut objects = vec![
        b"<< /Type /Catalog /Pages 2 0 R >>".to_vec(),
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>".to_vec(),
        page.into_bytes(),
        content,
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>".to_vec(),
    ];
    objects.extend_from_slice(more);
    document(&objects)
}

/// A document of the objects, numbered from 1; the first is the catalogue.
pub fn document(objects: &[Vec<u8>]) -> Vec<u8> {
    let mut file = b"%PDF-1.7\n".to_vec();
    let mut table = String::from("0000000000 65535 f \n");
    for (number, object) in (1..).zip(objects) {
        writeln!(table, "{:010} 00000 n ", file.len()).unwrap();
        file.extend_from_slice(format!("{number} 0 obj\n").as_bytes());
        file.extend_from_slice(object);
        file.extend_from_slice(b"\nendobj\n");
    }
    let (count, start) = (objects.len() + 1, file.len());
    let end = format!(
        "xref\n0 {count}\n{table}trailer\n<< /Size {count} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n"
    );
    file.extend_from_slice(end.as_bytes());
    file
}

/// A stream object.
pub fn stream(bytes: &[u8], entries: &str) -> Vec<u8> {
    let head = format!("<< /Length {} {entries} >>\nstream\n", bytes.len());
    [head.as_bytes(), bytes, b"\nendstream"].concat()
}

/// A form that paints `content`.
pub fn form(content: &str, resources: &str) -> Vec<u8> {
    let entries =
        format!("/Type /XObject /Subtype /Form /BBox [0 0 612 792] /Resources << {resources} >>");
    stream(content.as_bytes(), &entries)
}

/// Forms of which each paints the next one ten times: `depth` of them, from number 6 on. All of them
/// together paint more than any machine will in its time.
pub fn endless_forms(depth: usize) -> Vec<Vec<u8>> {
    let next = |at: usize| format!("/XObject << /G {} 0 R >>", 7 + at);
    let last = form("BT /F1 12 Tf 72 720 Td (ha) Tj ET", "/Font << /F1 5 0 R >>");
    (0..depth - 1).map(|at| form(&"/G Do ".repeat(10), &next(at))).chain([last]).collect()
}

/// Zeros in zlib's form, without taking the time to pack them: in ten thousand bytes, two million.
pub fn zeros(packed_bytes: usize) -> Vec<u8> {
    // One zero, then as many copies as a block may have of 258 zeros, in the fixed code: thirteen bits
    // each (lengths are 11000101, distances 00000), packed from the lowest bit on.
    let bits = [1, 1, 0].into_iter().chain([0, 0, 1, 1, 0, 0, 0, 0]);
    let copy = [1, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0];
    let mut bits = bits.chain(copy.into_iter().cycle());
    let packed = std::iter::repeat_with(move || {
        (0..8).fold(0_u8, |byte, at| byte | (bits.next().unwrap() << at))
    });
    [0x78, 0x9c].into_iter().chain(packed.take(packed_bytes)).collect()
}
