//! Columns for people at a terminal.

/// How the cells of a column stand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Prints rows under their heads, each column as wide as its widest cell.
pub fn print(heads: &[(&str, Align)], rows: &[Vec<String>]) {
    let head: Vec<String> = heads.iter().map(|(head, _)| (*head).to_owned()).collect();
    let widths: Vec<usize> = (0..heads.len())
        .map(|column| {
            let cells = std::iter::once(&head).chain(rows).filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    for row in std::iter::once(&head).chain(rows) {
        let cells = row.iter().zip(heads).zip(&widths).map(|((cell, (_, align)), &width)| {
            if *align == Align::Left { format!("{cell:width$}") } else { format!("{cell:>width$}") }
        });
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}
