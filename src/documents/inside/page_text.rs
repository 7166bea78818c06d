//! What a page says, and whether what it shows is more than that.

use hayro::hayro_interpret::font::{Glyph, GlyphRun};
use hayro::hayro_interpret::hayro_cmap::{BfString, WritingMode};
use hayro::hayro_interpret::{
    BlendMode, ClipPath, Context, Device, DrawMode, DrawProps, Image, ImageDrawProps,
    InterpreterCache, InterpreterSettings, SoftMask, TransformExt, interpret_page,
};
use hayro::hayro_syntax::page::Page;
use hayro::kurbo::{Affine, BezPath, Point, Rect, Vec2};

use super::layout::{Lines, Placed, Run};

/// Units of a font's own coordinates to its size.
const EM: f64 = 1000.0;
/// A picture that covers this part of a page is the page itself, not an ornament.
const COVERS: f64 = 0.7;
/// Text of fewer characters on such a picture is a stamp or a page number.
const STAMP: usize = 80;
/// One character in so many that nobody can name, and the text cannot be relied on: its font names
/// its glyphs by numbers of its own.
const UNNAMED_ONE_IN: usize = 20;

/// What was found on a page.
#[derive(Debug, PartialEq)]
pub(super) struct PageText {
    pub text: String,
    /// Whether there was room for all of it.
    pub whole: bool,
    pub shows: Shows,
}

/// Where the content of a page lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shows {
    Nothing,
    Text,
    /// Something that its text does not say.
    Picture,
}

/// Reads a page. Of its text, no more than about `at_most` bytes are kept.
pub(super) fn read<'a>(
    page: &'a Page<'a>,
    cache: &InterpreterCache<'a>,
    settings: &InterpreterSettings,
    at_most: usize,
) -> PageText {
    let (width, height) = page.render_dimensions();
    let area = Rect::new(0.0, 0.0, f64::from(width), f64::from(height));
    let transform = page.initial_transform(true).to_kurbo();
    let mut context = Context::new(transform, area, cache, page.xref(), settings.clone());
    let mut reader = Reader::new(area, at_most);
    interpret_page(page, &mut context, &mut reader);
    let (shows, whole) = (reader.shows(), reader.whole);
    PageText { text: reader.lines.into_text(), whole, shows }
}

/// A device that writes down instead of painting.
struct Reader {
    page: Rect,
    lines: Lines,
    room: usize,
    whole: bool,
    named: usize,
    unnamed: usize,
    painted: bool,
    /// The largest part of the page that one picture covers.
    covered: f64,
}

impl Reader {
    fn new(page: Rect, room: usize) -> Self {
        Reader {
            page,
            lines: Lines::default(),
            room,
            whole: true,
            named: 0,
            unnamed: 0,
            painted: false,
            covered: 0.0,
        }
    }

    fn shows(&self) -> Shows {
        let unreliable = self.unnamed * UNNAMED_ONE_IN > self.named + self.unnamed;
        if unreliable || (self.covered >= COVERS && self.named < STAMP) {
            Shows::Picture
        } else if self.named > 0 {
            Shows::Text
        } else if self.painted {
            Shows::Picture
        } else {
            Shows::Nothing
        }
    }

    /// What a glyph stands for, if it can be named and there is room for it.
    fn name(&mut self, glyph: &Glyph<'_>) -> Option<String> {
        let name = glyph.as_unicode().and_then(named);
        match &name {
            None => self.unnamed += 1,
            Some(name) if name.trim().is_empty() => {}
            Some(_) => self.named += 1,
        }
        let name = name?;
        let room = self.room.checked_sub(name.len());
        self.whole &= room.is_some();
        self.room = room?;
        Some(name)
    }
}

impl Device<'_> for Reader {
    fn draw_glyph_run(&mut self, run: &GlyphRun<'_, '_>, props: DrawProps<'_>, _: &DrawMode) {
        let vertical = matches!(run.writing_mode(), WritingMode::Vertical);
        let Some(first) = run.glyphs().first() else { return };
        let transform = props.transform * first.transform();
        let (right, up) = (moved(transform, EM, 0.0), moved(transform, 0.0, EM));
        let (size, direction) = (up.length(), if vertical { -up } else { right });
        let along = direction / direction.length();
        if !(size.is_finite() && along.is_finite() && size > 0.0) {
            return;
        }
        let mut placed = Vec::with_capacity(run.glyphs().len());
        for glyph in run.glyphs() {
            let at = props.transform * glyph.transform() * Point::ZERO;
            // What lies beside the page is seen by nobody.
            if !self.page.inflate(size, size).contains(at) {
                continue;
            }
            let width = if vertical { EM } else { width(glyph) } / EM * size;
            if let Some(text) = self.name(glyph) {
                placed.push(Placed { text, x: at.x, y: at.y, width });
            }
        }
        if !placed.is_empty() {
            let stretch = right.length() / size;
            self.lines.add(Run { placed, size, along: (along.x, along.y), stretch });
        }
    }

    fn draw_image(&mut self, image: Image<'_, '_>, props: ImageDrawProps<'_>) {
        let pixels = Rect::new(0.0, 0.0, f64::from(image.width()), f64::from(image.height()));
        let seen = props.transform.transform_rect_bbox(pixels).intersect(self.page);
        if seen.area() > 0.0 {
            self.painted = true;
            self.covered = self.covered.max(seen.area() / self.page.area());
        }
    }

    fn draw_path(&mut self, path: &BezPath, _: DrawProps<'_>, mode: &DrawMode) {
        self.painted |= !path.is_empty() && !matches!(mode, DrawMode::Invisible);
    }

    fn draw_rect(&mut self, _: &Rect, _: DrawProps<'_>, mode: &DrawMode) {
        self.painted |= !matches!(mode, DrawMode::Invisible);
    }

    fn push_clip_path(&mut self, _: &ClipPath) {}
    fn push_clip_rect(&mut self, _: &Rect) {}
    fn push_transparency_group(&mut self, _: f32, _: Option<SoftMask<'_>>, _: BlendMode) {}
    fn pop_clip(&mut self) {}
    fn pop_transparency_group(&mut self) {}
}

fn moved(transform: Affine, x: f64, y: f64) -> Vec2 {
    transform * Point::new(x, y) - transform * Point::ZERO
}

/// As the file says it, in units of the font; half its size where it does not.
fn width(glyph: &Glyph<'_>) -> f64 {
    let width = match glyph {
        Glyph::Outline(glyph) => glyph.advance_width(),
        Glyph::Type3(glyph) => glyph.advance_width(),
    };
    width.map(f64::from).filter(|width| width.is_finite() && *width >= 0.0).unwrap_or(EM / 2.0)
}

/// The characters as they are written by hand; `None` where they say nothing to anybody but the font.
fn named(name: BfString) -> Option<String> {
    let name = match name {
        BfString::Char(c) => c.to_string(),
        BfString::String(name) => name,
    };
    let meaningless = |c: char| {
        c == '\u{fffd}'
            || matches!(c, '\u{e000}'..='\u{f8ff}')
            || (c.is_control() && !c.is_whitespace())
    };
    if name.is_empty() || name.chars().any(meaningless) {
        return None;
    }
    let mut written = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            '\u{fb00}' => written.push_str("ff"),
            '\u{fb01}' => written.push_str("fi"),
            '\u{fb02}' => written.push_str("fl"),
            '\u{fb03}' => written.push_str("ffi"),
            '\u{fb04}' => written.push_str("ffl"),
            '\u{fb05}' | '\u{fb06}' => written.push_str("st"),
            c if c.is_whitespace() => written.push(' '),
            c => written.push(c),
        }
    }
    Some(written)
}
