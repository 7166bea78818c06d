//! A picture: whole, upright, and of a size that a model takes. One that is so already goes on byte
//! by byte; it is decoded all the same, to see that it can be.

use std::io::Cursor;

use bytes::Bytes;
use image::codecs::jpeg::{JpegDecoder, JpegEncoder};
use image::codecs::png::PngDecoder;
use image::codecs::webp::WebPDecoder;
use image::imageops::FilterType;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, Limits, Rgb, RgbImage};

use super::super::limits::ReadLimits;
use super::super::unreadable::UnreadableReason;
use super::super::wire::{Task, Variant};
use super::{PageImage, Refusal};

/// Qualities of JPEG, the next where the picture is still too large. At 90 nothing is seen of it.
const QUALITIES: [u8; 4] = [90, 75, 55, 35];

/// The picture that the file is.
pub(super) fn read(task: Task, file: Vec<u8>, limits: &ReadLimits) -> Result<PageImage, Refusal> {
    let read = Cursor::new(file.as_slice());
    let (media_type, decoded) = match task {
        Task::Png => {
            let decoder = PngDecoder::with_limits(read, allocations(limits)).map_err(refused)?;
            if decoder.is_apng().map_err(refused)? {
                return Err(Refusal::Variant(Variant::Animated));
            }
            (PageImage::PNG, decode(decoder, limits)?)
        }
        Task::Webp => {
            let decoder = WebPDecoder::new(read).map_err(refused)?;
            if decoder.has_animation() {
                return Err(Refusal::Variant(Variant::Animated));
            }
            (PageImage::WEBP, decode(decoder, limits)?)
        }
        Task::Jpeg | Task::Pdf => {
            (PageImage::JPEG, decode(JpegDecoder::new(read).map_err(refused)?, limits)?)
        }
    };
    let (picture, orientation) = decoded;
    let (width, height) = (picture.width(), picture.height());
    let fits = width.max(height) <= limits.max_side && file.len() as u64 <= limits.picture_bytes;
    if fits && orientation == Orientation::NoTransforms {
        return Ok(PageImage { media_type, bytes: file.into(), width, height });
    }
    let mut picture = if width.max(height) > limits.max_side {
        picture.resize(limits.max_side, limits.max_side, FilterType::Triangle)
    } else {
        picture
    };
    picture.apply_orientation(orientation);
    as_jpeg(&flat(picture), limits)
}

/// The first encoding that is small enough.
pub(super) fn as_jpeg(picture: &RgbImage, limits: &ReadLimits) -> Result<PageImage, Refusal> {
    for quality in QUALITIES {
        let mut bytes = Vec::new();
        let encoder = JpegEncoder::new_with_quality(&mut bytes, quality);
        picture.write_with_encoder(encoder).map_err(refused)?;
        if bytes.len() as u64 <= limits.picture_bytes {
            let (width, height) = picture.dimensions();
            let bytes = Bytes::from(bytes);
            return Ok(PageImage { media_type: PageImage::JPEG, bytes, width, height });
        }
    }
    Err(UnreadableReason::TooComplex.into())
}

fn allocations(limits: &ReadLimits) -> Limits {
    let mut allocations = Limits::no_limits();
    allocations.max_alloc = Some(limits.memory_bytes / 2);
    allocations
}

fn decode(
    mut decoder: impl ImageDecoder,
    limits: &ReadLimits,
) -> Result<(DynamicImage, Orientation), Refusal> {
    let (width, height) = decoder.dimensions();
    if u64::from(width) * u64::from(height) > limits.max_pixels {
        return Err(UnreadableReason::TooComplex.into());
    }
    decoder.set_limits(allocations(limits)).map_err(refused)?;
    let orientation = decoder.orientation().map_err(refused)?;
    Ok((DynamicImage::from_decoder(decoder).map_err(refused)?, orientation))
}

/// On white, where it lets something through.
fn flat(picture: DynamicImage) -> RgbImage {
    if !picture.color().has_alpha() {
        return picture.into_rgb8();
    }
    let layered = picture.into_rgba8();
    RgbImage::from_fn(layered.width(), layered.height(), |x, y| {
        let [red, green, blue, alpha] = layered.get_pixel(x, y).0;
        let alpha = u16::from(alpha);
        Rgb([red, green, blue].map(|part| {
            let mixed = (u16::from(part) * alpha + 255 * (255 - alpha)) / 255;
            u8::try_from(mixed).unwrap_or(u8::MAX)
        }))
    })
}

fn refused(error: ImageError) -> Refusal {
    match error {
        ImageError::Unsupported(_) => Refusal::Variant(Variant::Rare),
        ImageError::Limits(_) => UnreadableReason::TooComplex.into(),
        ImageError::Decoding(_)
        | ImageError::Encoding(_)
        | ImageError::Parameter(_)
        | ImageError::IoError(_) => UnreadableReason::Broken.into(),
    }
}
