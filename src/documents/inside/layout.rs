//! From characters with places to lines of text. A PDF knows no words and no lines: only where which
//! glyphs are painted. Speeches are told apart by lines, so lines are what must come out right.
//!
//! The order is the one in which the page is painted, which for what programs write is the order of
//! reading, columns included. Only a page whose painting jumps about upwards is put in order by place.

/// Gaps that are wider, in parts of the font's size, are blanks. Blanks are about 0.25 wide; kerning
/// makes no gap of more than 0.1.
const BLANK: f64 = 0.15;
/// Characters that stand higher or lower by more, in parts of the font's size, are of another line;
/// exponents rise by about a third.
const OTHER_LINE: f64 = 0.4;
/// Going back by more, in parts of the font's size, begins a new piece of text.
const BACKWARDS: f64 = 0.5;
/// The next line, where it lies lower by more than so many usual distances, begins a paragraph.
const PARAGRAPH: f64 = 1.5;
/// The same text painted again at less than this distance, in parts of the font's size, is bold type
/// in a cheap way, or a shadow.
const AGAIN: f64 = 0.3;
/// From so many neighbours on, their distances tell how much a font is stretched.
const TELLING_NEIGHBOURS: usize = 4;

/// A character on the page; coordinates count from the upper left corner, in points.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Placed {
    pub text: String,
    pub x: f64,
    pub y: f64,
    /// How wide the font says that it is, before it is stretched.
    pub width: f64,
}

/// Characters that were painted in one go.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Run {
    pub placed: Vec<Placed>,
    /// The size of the font.
    pub size: f64,
    /// Where the line goes, as a vector of length 1: mostly (1, 0).
    pub along: (f64, f64),
    /// How much wider than its size says the font seems to be painted.
    pub stretch: f64,
}

/// The lines of a page, while it is painted.
#[derive(Debug, Default)]
pub(super) struct Lines {
    lines: Vec<Line>,
    last: Option<Run>,
}

#[derive(Debug)]
struct Line {
    text: String,
    along: (f64, f64),
    size: f64,
    /// Along the line: of its beginning and its end so far.
    from: f64,
    to: f64,
    /// Across the line, downwards.
    down: f64,
}

impl Lines {
    /// Takes in what is painted next.
    pub(super) fn add(&mut self, run: Run) {
        if self.last.as_ref().is_some_and(|last| last.is_painted_again_by(&run)) {
            return;
        }
        let stretch = run.painted_stretch();
        for placed in &run.placed {
            self.place(placed, &run, placed.width * stretch);
        }
        self.last = Some(run);
    }

    fn place(&mut self, placed: &Placed, run: &Run, width: f64) {
        let (x, y) = run.along;
        let along = placed.x * x + placed.y * y;
        let down = placed.y * x - placed.x * y;
        if let Some(line) = self.lines.last_mut()
            && line.goes_on_at(along, down, run)
        {
            if along - line.to > BLANK * run.size && !line.text.ends_with(' ') {
                line.text.push(' ');
            }
            line.text.push_str(&placed.text);
            line.to = along + width;
            line.size = line.size.max(run.size);
            return;
        }
        self.lines.push(Line {
            text: placed.text.clone(),
            along: run.along,
            size: run.size,
            from: along,
            to: along + width,
            down,
        });
    }

    /// The text of the page, a line each, with an empty one between paragraphs.
    pub(super) fn into_text(mut self) -> String {
        self.lines.retain(|line| !line.text.trim().is_empty());
        if self.jumps_about() {
            self.put_in_order();
        }
        let paragraph = self.usual_distance() * PARAGRAPH;
        let mut text = String::new();
        let mut last: Option<&Line> = None;
        for line in &self.lines {
            if let Some(last) = last
                && (line.down - last.down > paragraph && paragraph > 0.0)
            {
                text.push('\n');
            }
            text.push_str(line.text.trim());
            text.push('\n');
            last = Some(line);
        }
        text
    }

    /// Whether more than every third line was painted above the one before it.
    fn jumps_about(&self) -> bool {
        let up = self.lines.windows(2).filter(|two| two[1].down < two[0].down - two[0].size);
        up.count() * 3 > self.lines.len()
    }

    /// Downwards, and pieces on the same height as one line, from left to right.
    fn put_in_order(&mut self) {
        self.lines.sort_by(|a, b| a.down.total_cmp(&b.down));
        let mut ordered: Vec<Line> = Vec::with_capacity(self.lines.len());
        let mut rest = std::mem::take(&mut self.lines).into_iter().peekable();
        while let Some(first) = rest.next() {
            let (down, within) = (first.down, first.size * OTHER_LINE);
            let mut row = vec![first];
            while let Some(next) = rest.next_if(|next| next.down - down <= within) {
                row.push(next);
            }
            row.sort_by(|a, b| a.from.total_cmp(&b.from));
            let mut row = row.into_iter();
            ordered.extend(row.next().map(|first| {
                row.fold(first, |mut line, piece| {
                    line.text.push(' ');
                    line.text.push_str(piece.text.trim());
                    line.to = line.to.max(piece.to);
                    line
                })
            }));
        }
        self.lines = ordered;
    }

    /// From a line to the next, the median.
    fn usual_distance(&self) -> f64 {
        let distances = self.lines.windows(2).map(|two| two[1].down - two[0].down);
        median(distances.filter(|distance| *distance > 0.0).collect()).unwrap_or(0.0)
    }
}

impl Line {
    fn goes_on_at(&self, along: f64, down: f64, run: &Run) -> bool {
        let size = self.size.max(run.size);
        let turned = (self.along.0 - run.along.0).abs() + (self.along.1 - run.along.1).abs();
        turned < 0.1
            && (down - self.down).abs() <= OTHER_LINE * size
            && along >= self.to - BACKWARDS * size
    }
}

impl Run {
    fn is_painted_again_by(&self, other: &Run) -> bool {
        let (Some(a), Some(b)) = (self.placed.first(), other.placed.first()) else { return false };
        let near = |a: f64, b: f64| (a - b).abs() < AGAIN * self.size;
        let texts =
            |run: &Run| run.placed.iter().map(|placed| placed.text.clone()).collect::<String>();
        near(a.x, b.x) && near(a.y, b.y) && texts(self) == texts(other)
    }

    /// By how much widths must be multiplied, as the distances of neighbours show it: condensed,
    /// wide and spaced type, of which the file says nothing in one place.
    fn painted_stretch(&self) -> f64 {
        let (x, y) = self.along;
        let ratios = self
            .placed
            .windows(2)
            .filter(|two| two[0].width > 0.0)
            .map(|two| ((two[1].x - two[0].x) * x + (two[1].y - two[0].y) * y) / two[0].width);
        let ratios: Vec<f64> = ratios.collect();
        let known = ratios.len() >= TELLING_NEIGHBOURS;
        let stretch = known.then(|| median(ratios)).flatten().unwrap_or(self.stretch.max(1.0));
        stretch.clamp(0.2, 5.0)
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text as programs paint it: each character half as wide as the font is large.
    fn run_at(x: f64, y: f64, text: &str) -> Run {
        spaced(x, y, text, 5.0)
    }

    fn spaced(x: f64, y: f64, text: &str, step: f64) -> Run {
        let placed = text.chars().enumerate().map(|(at, c)| Placed {
            text: c.to_string(),
            x: x + step * f64::from(u32::try_from(at).unwrap()),
            y,
            width: 5.0,
        });
        Run { placed: placed.collect(), size: 10.0, along: (1.0, 0.0), stretch: 1.0 }
    }

    fn text_of(runs: impl IntoIterator<Item = Run>) -> String {
        let mut lines = Lines::default();
        runs.into_iter().for_each(|run| lines.add(run));
        lines.into_text()
    }

    #[test]
    fn every_line_of_the_page_is_a_line() {
        let runs = [
            run_at(72.0, 72.0, "MARA: Is it boiling?"),
            run_at(72.0, 84.0, "OTTO: Not"),
            run_at(122.0, 84.0, "yet."),
        ];
        assert_eq!(text_of(runs), "MARA: Is it boiling?\nOTTO: Not yet.\n");
    }

    #[test]
    fn words_that_are_only_placed_apart_are_apart() {
        let words =
            [run_at(72.0, 72.0, "OTTO:"), run_at(100.0, 72.0, "Not"), run_at(115.0, 72.0, "!")];
        assert_eq!(text_of(words), "OTTO: Not!\n");
    }

    #[test]
    fn stretched_type_keeps_its_words() {
        let wide = spaced(72.0, 72.0, "ACT ONE", 9.0);
        let narrow = spaced(72.0, 90.0, "Scene two", 3.0);
        assert_eq!(text_of([wide, narrow]), "ACT ONE\nScene two\n");
    }

    #[test]
    fn a_wide_gap_between_lines_is_an_empty_line() {
        let heights = [72.0, 84.0, 96.0, 126.0, 138.0];
        let text = text_of(heights.map(|y| run_at(72.0, y, "x")));
        assert_eq!(text, "x\nx\nx\n\nx\nx\n");
    }

    #[test]
    fn what_is_painted_twice_is_read_once() {
        let runs = [
            run_at(72.0, 72.0, "MARA:"),
            run_at(72.4, 72.0, "MARA:"),
            run_at(102.0, 72.0, "No, no."),
        ];
        assert_eq!(text_of(runs), "MARA: No, no.\n");
    }

    #[test]
    fn columns_are_read_one_after_the_other() {
        let column = |x: f64, word: &'static str| {
            (0..6).map(move |line| run_at(x, 72.0 + 12.0 * f64::from(line), word))
        };
        let text = text_of(column(72.0, "left").chain(column(300.0, "right")));
        assert_eq!(text, "left\n".repeat(6) + &"right\n".repeat(6));
    }

    #[test]
    fn a_page_that_is_painted_upwards_is_read_downwards() {
        let rows = (0..6).rev().flat_map(|line: u32| {
            let y = 72.0 + 12.0 * f64::from(line);
            [run_at(200.0, y, &format!("line {line}")), run_at(72.0, y, "MARA:")]
        });
        let expected: Vec<String> = (0..6).map(|line| format!("MARA: line {line}\n")).collect();
        assert_eq!(text_of(rows), expected.concat());
    }

    #[test]
    fn turned_text_is_a_line_of_its_own() {
        let mut turned = run_at(0.0, 0.0, "DRAFT");
        turned.along = (0.0, -1.0);
        for (at, placed) in turned.placed.iter_mut().enumerate() {
            (placed.x, placed.y) = (20.0, 700.0 - 5.0 * f64::from(u32::try_from(at).unwrap()));
        }
        let text =
            text_of([run_at(72.0, 72.0, "MARA: yes"), turned, run_at(72.0, 84.0, "OTTO: no")]);
        assert_eq!(text.lines().filter(|line| !line.is_empty()).count(), 3, "{text}");
        assert!(text.contains("DRAFT\n"), "{text}");
    }

    #[test]
    fn numbers_that_are_none_do_no_harm() {
        let text = text_of([run_at(f64::NAN, f64::INFINITY, "ab"), run_at(72.0, 72.0, "c")]);
        assert_eq!(text.split_whitespace().collect::<String>(), "abc");
        assert_eq!(text_of([]), "");
    }
}
