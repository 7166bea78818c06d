//! Pages as pictures, for documents that say nothing in text.

use hayro::hayro_interpret::InterpreterSettings;
use hayro::hayro_syntax::page::Page;
use hayro::vello_cpu::color::palette::css::WHITE;
use hayro::{PixmapSettings, RenderCache, RenderSettings, render};
use image::RgbImage;

use super::super::limits::ReadLimits;
use super::super::unreadable::UnreadableReason;
use super::picture::as_jpeg;
use super::{PageImage, Refusal};

/// Small pages are not blown up beyond this: 288 dots to the inch.
const LARGEST_SCALE: f32 = 4.0;

/// Paints the pages, upright and each as large as a model takes it.
pub(super) fn paint<'a>(
    pages: impl Iterator<Item = &'a Page<'a>>,
    settings: &InterpreterSettings,
    limits: &ReadLimits,
) -> Result<Vec<PageImage>, Refusal> {
    let cache = RenderCache::new();
    let mut room = limits.pictures_bytes;
    let mut pictures = Vec::new();
    for page in pages {
        let picture = paint_one(page, &cache, settings, limits)?;
        let bytes = picture.bytes.len() as u64;
        room = room.checked_sub(bytes).ok_or(UnreadableReason::TooComplex)?;
        pictures.push(picture);
    }
    Ok(pictures)
}

fn paint_one<'a>(
    page: &'a Page<'a>,
    cache: &RenderCache<'a>,
    settings: &InterpreterSettings,
    limits: &ReadLimits,
) -> Result<PageImage, Refusal> {
    let (width, height) = page.render_dimensions();
    let side = limits.max_side as f32;
    let scale = (side / width.max(height)).min(LARGEST_SCALE);
    // A page may be a million times as wide as it is high; a picture has a pixel at least.
    let along = |length: f32| scale.max(1.01 / length);
    let painted = PixmapSettings { x_scale: along(width), y_scale: along(height), bg_color: WHITE };
    let pixmap = render(page, cache, settings, &RenderSettings::default(), &painted);
    let (width, height) = (u32::from(pixmap.width()), u32::from(pixmap.height()));
    // On white all of it is opaque.
    let opaque = pixmap.data().iter().flat_map(|pixel| [pixel.r, pixel.g, pixel.b]).collect();
    let picture = RgbImage::from_raw(width, height, opaque).ok_or(UnreadableReason::Broken)?;
    as_jpeg(&picture, limits)
}
