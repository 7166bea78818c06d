//! Columns for people at a terminal.

/// Rows that are held to find how wide the columns must be; those after them are printed as they come, so
/// that a long report needs no more memory than a short one.
const HELD: usize = 1_000;

/// How the cells of a column stand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Prints rows under their heads, each column as wide as its widest cell among the first rows.
pub struct Table {
    heads: Vec<(String, Align)>,
    held: Vec<Vec<String>>,
    /// Known once the first rows are printed.
    widths: Option<Vec<usize>>,
}

impl Table {
    pub fn new(heads: &[(&str, Align)]) -> Self {
        let heads = heads.iter().map(|(head, align)| ((*head).to_owned(), *align)).collect();
        Self { heads, held: Vec::new(), widths: None }
    }

    /// Cells may hold what clients chose; as [`plain`] shows it.
    pub fn row(&mut self, cells: Vec<String>) {
        let cells: Vec<String> = cells.into_iter().map(plain).collect();
        match &self.widths {
            Some(widths) => self.print(&cells, widths),
            None => {
                self.held.push(cells);
                if self.held.len() == HELD {
                    self.print_held();
                }
            }
        }
    }

    /// Prints what is still held.
    pub fn end(mut self) {
        if self.widths.is_none() {
            self.print_held();
        }
    }

    fn print_held(&mut self) {
        let head: Vec<String> = self.heads.iter().map(|(head, _)| head.clone()).collect();
        let rows: Vec<_> = std::iter::once(head).chain(std::mem::take(&mut self.held)).collect();
        let widest = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.heads.len()).map(widest).collect();
        rows.iter().for_each(|row| self.print(row, &widths));
        self.widths = Some(widths);
    }

    fn print(&self, cells: &[String], widths: &[usize]) {
        let cells =
            cells.iter().zip(&self.heads).zip(widths).map(|((cell, (_, align)), &width)| {
                if *align == Align::Left {
                    format!("{cell:width$}")
                } else {
                    format!("{cell:>width$}")
                }
            });
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

/// A table that is there as a whole.
pub fn print(heads: &[(&str, Align)], rows: &[Vec<String>]) {
    let mut table = Table::new(heads);
    rows.iter().cloned().for_each(|row| table.row(row));
    table.end();
}

/// Without what would move a terminal's cursor or break the line: it is shown as it is written in Rust.
fn plain(cell: String) -> String {
    if !cell.contains(char::is_control) {
        return cell;
    }
    let shown = |letter: char| match letter.is_control() {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    cell.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_chose_moves_no_cursor() {
        assert_eq!(plain("käse 1".into()), "käse 1");
        assert_eq!(plain("a\nb\u{1b}[2J\u{9b}".into()), "a\\nb\\u{1b}[2J\\u{9b}");
    }
}
