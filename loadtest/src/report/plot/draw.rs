//! One chart as SVG.

use std::ops::Range;

use anyhow::Context;
use plotters::chart::SeriesLabelPosition;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::data::float::pretty_print_float;
use plotters::prelude::{
    BindKeyPoints, ChartBuilder, Circle, DrawingArea, IntoDrawingArea, IntoLogRange, LogCoord,
    PathElement, Pie, RGBColor, Rectangle, SVGBackend, TRANSPARENT,
};
use plotters::style::Color;

use crate::report::plot::{Chart, ChartKind, ChartRow, SERIES_MAX};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Returns the pixel of a place on the axis of rows and a number.
type PixelOf<'a> = &'a dyn Fn(f64, f64) -> (i32, i32);

const FONT: (&str, u32) = ("sans-serif", 14);
/// Pixels of a character of [`FONT`], about.
const CHARACTER: u32 = 7;
/// Pixels that the label of a row has at least.
const LABEL: u32 = 60;
/// Pixels around a chart, and of the legend beside its text.
const MARGIN: u32 = 12;
const LEGEND: u32 = 44;
/// The part of a row's place that its bars take.
const BAR_SHARE: f64 = 0.8;
/// Pixels of the straight pieces of a curve.
const PIECE: f64 = 8.0;
/// With a contrast of at least 3 to white and #161b21. The first four: Okabe and Ito, "Color Universal Design", 2008.
const COLORS: [u32; SERIES_MAX] = [
    0x0072b2, 0xd55e00, 0x009e73, 0xcc79a7, 0x8a63d2, 0xa67c00, 0x0e8f9e, 0xe0457b, 0x7f7f7f,
    0x9a6a4a, 0x5a8f00, 0xd14b4b,
];

/// Draws `chart`, whose text and axes are black and whose background is transparent.
///
/// # Errors
/// If [`Chart::check`] fails.
pub(super) fn svg(chart: &Chart) -> anyhow::Result<String> {
    let mut svg = String::new();
    let drawn = chart.check().and_then(|()| draw(chart, &mut svg));
    drawn.with_context(|| format!("drawing {:?}", chart.title))?;
    Ok(svg)
}

fn draw(chart: &Chart, svg: &mut String) -> anyhow::Result<()> {
    let root = SVGBackend::with_string(svg, (chart.width, chart.height)).into_drawing_area();
    let range = number_range(chart);
    let log_numbers = LogCoord::from(range.clone().log_scale());
    let numbers = RangedCoordf64::from(range);
    let rows = RangedCoordf64::from(-0.5..chart.rows.len() as f64 - 0.5);
    let labels: Vec<f64> = chart.rows.iter().map(ChartRow::label_number).collect();
    let log_rows = || {
        let range = labels[0] / 1.3..labels[labels.len() - 1] * 1.3;
        let step = labels.len().div_ceil((chart.width / LABEL) as usize);
        let ticks = labels.iter().copied().step_by(step);
        range.log_scale().with_key_points(ticks.collect())
    };
    match (chart.log_x, chart.log_y) {
        (false, false) => draw_on(chart, &root, rows, numbers),
        (false, true) => draw_on(chart, &root, rows, log_numbers),
        (true, false) => draw_on(chart, &root, log_rows(), numbers),
        (true, true) => draw_on(chart, &root, log_rows(), log_numbers),
    }?;
    root.present()?;
    Ok(())
}

/// Returns the range of the axis of numbers: a little more than 0 and all of them, or than powers of ten around them.
fn number_range(chart: &Chart) -> Range<f64> {
    let least = chart.numbers().fold(f64::INFINITY, f64::min);
    let greatest = chart.numbers().fold(f64::NEG_INFINITY, f64::max);
    if chart.log_y {
        let power = |exponent: f64| 10_f64.powf(exponent);
        0.9 * power(least.log10().floor())..1.1 * power(greatest.log10().ceil())
    } else {
        // The range is not empty where all numbers are 0.
        1.05 * least.min(0.0)..1.05 * greatest.max(0.0) + f64::MIN_POSITIVE
    }
}

/// Draws a chart with these axes.
fn draw_on<X, Y>(chart: &Chart, root: &Area, x: X, y: Y) -> anyhow::Result<()>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let names = legend(chart);
    let longest = names.iter().map(|name| name.chars().count() as u32).max();
    let legend_width = longest.unwrap_or_default() * CHARACTER + LEGEND;
    let legend_width = legend_width.min(chart.width * 2 / 5);
    let is_pie = chart.kind == ChartKind::Pie;
    let (left, right) = root.split_horizontally(chart.width - legend_width);
    let mut plot = ChartBuilder::on(&left)
        .caption(&chart.title, ("sans-serif", 20))
        .margin(MARGIN)
        .x_label_area_size(if is_pie { 0 } else { 28 })
        .y_label_area_size(if is_pie { 0 } else { 64 })
        .build_cartesian_2d(x, y)?;
    let (width, _) = plot.plotting_area().dim_in_pixel();
    let labels = (width / LABEL).clamp(1, chart.rows.len() as u32);
    let label = |x: &f64| match chart.rows.get(x.round() as usize) {
        Some(row) if !chart.log_x => cut(&row.label, width / labels),
        _ => number_text(*x),
    };
    if !is_pie {
        let mut mesh = plot.configure_mesh();
        if chart.kind == ChartKind::Bar {
            mesh.disable_x_mesh();
        }
        mesh.light_line_style(TRANSPARENT)
            .label_style(FONT)
            .x_labels(labels as usize)
            .x_label_formatter(&label)
            .y_labels(10)
            .y_label_formatter(&|y: &f64| number_text(*y))
            .draw()?;
    }
    let pixel = |place, number| plot.backend_coord(&(place, number));
    match chart.kind {
        ChartKind::Pie => draw_pie(chart, &plot.plotting_area().strip_coord_spec())?,
        ChartKind::Bar => draw_bars(chart, root, plot.y_range().start.max(0.0), &pixel)?,
        _ => draw_lines(chart, root, &pixel)?,
    }
    // A context of its own, since plotters draws legends inside the axes.
    let mut context = ChartBuilder::on(&right)
        .margin_top(MARGIN)
        .build_cartesian_2d(0..1, 0..1)?;
    for (number, name) in names.iter().enumerate() {
        let color = color(number);
        context
            .draw_series(std::iter::empty::<Circle<(i32, i32), u32>>())?
            .label(cut(name, legend_width.saturating_sub(LEGEND)))
            .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 16, y + 4)], color.filled()));
    }
    context
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .legend_area_size(24)
        .label_font(FONT)
        .draw()?;
    Ok(())
}

/// Returns what each color means.
fn legend(chart: &Chart) -> Vec<String> {
    if chart.kind != ChartKind::Pie {
        return chart.series.clone();
    }
    let sum: f64 = chart.numbers().sum();
    let slices = chart.rows.iter().zip(chart.numbers());
    let name = slices.map(|(row, number)| {
        let (number, percent) = (number_text(number), 100.0 * number / sum);
        format!("{}: {number} ({percent:.1} %)", row.label)
    });
    name.collect()
}

fn color(series: usize) -> RGBColor {
    let [_, red, green, blue] = COLORS[series].to_be_bytes();
    RGBColor(red, green, blue)
}

fn number_text(number: f64) -> String {
    let is_scientific = !(1e-4..1e6).contains(&number.abs());
    pretty_print_float(number, is_scientific)
}

/// Cuts a text that is wider than `pixels`.
fn cut(text: &str, pixels: u32) -> String {
    let fit = (pixels / CHARACTER) as usize;
    match text.char_indices().nth(fit) {
        Some(_) => text
            .chars()
            .take(fit.saturating_sub(1))
            .chain(['…'])
            .collect(),
        None => text.to_owned(),
    }
}

fn draw_pie(chart: &Chart, area: &Area) -> anyhow::Result<()> {
    let (width, height) = area.dim_in_pixel();
    // plotters draws pies at pixels of the whole picture.
    let (left, top) = area.get_base_pixel();
    let center = (left + width as i32 / 2, top + height as i32 / 2);
    let radius = f64::from(width.min(height)) * 0.45;
    let sizes: Vec<f64> = chart.numbers().collect();
    let colors: Vec<RGBColor> = (0..sizes.len()).map(color).collect();
    // The legend has the labels.
    let labels = vec![""; sizes.len()];
    let mut pie = Pie::new(&center, &radius, &sizes, &colors, &labels);
    pie.start_angle(-90.0);
    area.draw(&pie)?;
    Ok(())
}

/// Draws the bars of each row beside each other.
fn draw_bars(chart: &Chart, root: &Area, base: f64, pixel: PixelOf) -> anyhow::Result<()> {
    let width = BAR_SHARE / chart.series.len() as f64;
    for (place, row) in chart.rows.iter().enumerate() {
        for (series, number) in row.numbers.iter().enumerate() {
            let left = place as f64 - BAR_SHARE / 2.0 + series as f64 * width;
            if let Some(number) = *number {
                let [from, mut to] = [pixel(left, base), pixel(left + width, number)];
                to.0 = to.0.max(from.0 + 1);
                root.draw(&Rectangle::new([from, to], color(series).filled()))?;
            }
        }
    }
    Ok(())
}

fn draw_lines(chart: &Chart, root: &Area, pixel: PixelOf) -> anyhow::Result<()> {
    for series in 0..chart.series.len() {
        let mut line = Vec::new();
        for (place, row) in chart.rows.iter().enumerate() {
            let place = if chart.log_x {
                row.label_number()
            } else {
                place as f64
            };
            line.extend(row.numbers[series].map(|number| pixel(place, number)));
        }
        // A point alone would be no line.
        if chart.kind == ChartKind::Line || line.len() == 1 {
            for point in &line {
                root.draw(&Circle::new(*point, 3, color(series).filled()))?;
            }
        }
        if chart.kind != ChartKind::LineNoCurve {
            line = curve(&line);
        }
        root.draw(&PathElement::new(line, color(series).stroke_width(2)))?;
    }
    Ok(())
}

/// Returns pixels on a curve through `points`, which is level at each of them and so goes no further.
fn curve(points: &[(i32, i32)]) -> Vec<(i32, i32)> {
    let mut curve: Vec<(i32, i32)> = points.iter().take(1).copied().collect();
    for pair in points.windows(2) {
        let ((x, y), (next_x, next_y)) = (pair[0], pair[1]);
        let (width, height) = (f64::from(next_x - x), f64::from(next_y - y));
        let steps = (width / PIECE).ceil().max(1.0);
        curve.extend((1..=steps as i32).map(|step| {
            let share = f64::from(step) / steps;
            let rise = height * share * share * (3.0 - 2.0 * share);
            (x + (width * share).round() as i32, y + rise.round() as i32)
        }));
    }
    curve
}

#[cfg(test)]
mod tests {
    use super::ChartKind::{Bar, Line, LineNoCurve, LineNoDot, Pie};
    use super::*;

    fn chart(kind: ChartKind, rows: &[(&str, f64)]) -> Chart {
        let mut chart = Chart::new(kind, "t", ["<s&\""]);
        for (label, number) in rows {
            chart.push(*label, [Some(*number)]);
        }
        chart
    }

    #[test]
    fn each_kind_draws_each_number_and_escapes_text() {
        let rows = [("<a&\"", 1.0), ("b", 2.5), ("c", 4.0), ("d", 0.0)];
        // Bars beside the one of the legend.
        for (kind, shape, count) in [
            (Line, "<circle", 4),
            (LineNoDot, "<circle", 0),
            (LineNoCurve, "<circle", 0),
            (Bar, "<rect", 5),
            (Pie, "<polygon", 4),
        ] {
            let svg = svg(&chart(kind, &rows)).unwrap();
            assert_eq!(svg.matches(shape).count(), count, "{kind:?}: {svg}");
            assert!(svg.contains("&lt;a&amp;&quot;") && !svg.contains("<a&"));
            assert!(!svg.contains("width=\"0\""), "{svg}");
            assert_eq!(svg.contains("b: 2.5 (33.3 %)"), kind == Pie, "{svg}");
        }
    }

    #[test]
    fn extremes_are_drawn() {
        let many: Vec<_> = (1..=10_000).map(|row| ("x", f64::from(row))).collect();
        for (rows, log_x, log_y) in [
            (&many[..], false, true),
            (&[("1e-300", 1e15), ("1e300", -1e15)], true, false),
            (&[("1", 1e15), ("2", 1e-12)], true, true),
            (&[("a", 1e-12)], false, false),
            (&[("a", 0.0)], false, false),
        ] {
            for (kind, size) in [(Line, 200), (LineNoCurve, 4_000), (Bar, 200), (Bar, 4_000)] {
                let mut chart = chart(kind, rows);
                (chart.width, chart.height) = (size, size);
                (chart.log_x, chart.log_y) = (log_x && kind != Bar, log_y);
                let svg = svg(&chart).unwrap();
                assert!(svg.ends_with("</svg>\n") && !svg.contains("width=\"0\""));
            }
        }
    }

    #[test]
    fn curves_pass_through_their_points_and_no_further() {
        let points = [(0, 0), (10, 100), (90, 100), (90, 50), (120, 30)];
        let curve = curve(&points);
        assert!(points.iter().all(|point| curve.contains(point)));
        assert!(curve.iter().all(|(_, y)| (0..=100).contains(y)));
    }
}
