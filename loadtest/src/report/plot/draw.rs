//! One chart as SVG.

use anyhow::Context;
use plotters::coord::Shift;
use plotters::prelude::{
    BLACK, Cartesian2d, ChartBuilder, ChartContext, Circle, DrawingArea, EmptyElement,
    IntoDrawingArea, LineSeries, PathElement, Pie, RGBColor, Rectangle, SVGBackend, TRANSPARENT,
    Text,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoTextStyle};

use crate::report::plot::axis::{Axis, number_axis, position, rounded};
use crate::report::plot::{Chart, ChartKind, SERIES_MAX};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Plot<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;

const FONT: (&str, u32) = ("sans-serif", 14);
/// Pixels of a character of [`FONT`], about, and of a line of text.
const CHARACTER: u32 = 7;
const LINE: u32 = 16;
/// Pixels around the axes, left of them for numbers, and below them for labels.
const MARGIN: u32 = 12;
const LEFT: u32 = 64;
const BOTTOM: u32 = 28;
/// The part of a row's place that its bars take.
const BAR_SHARE: f64 = 0.8;
/// More points than these look smooth by themselves.
const CURVE_POINTS_MAX: usize = 200;
/// Straight pieces of a curve between two points.
const PIECES: u32 = 12;
const GRID: RGBColor = RGBColor(225, 225, 225);
/// With a contrast of at least 3 to white and to #161b21. The first four are of Okabe and Ito, "Color Universal Design",
/// 2008.
const COLORS: [u32; SERIES_MAX] = [
    0x0072b2, 0xd55e00, 0x009e73, 0xcc79a7, 0x8a63d2, 0xa67c00, 0x0e8f9e, 0xe0457b, 0x7f7f7f,
    0x9a6a4a, 0x5a8f00, 0xd14b4b,
];

/// Draws `chart`, whose text is black and whose background is transparent.
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
    let is_pie = chart.kind == ChartKind::Pie;
    let (title, names) = match &*chart.series {
        [name] if chart.title.is_empty() => (name, Vec::new()),
        [_] => (&chart.title, Vec::new()),
        names => (&chart.title, names.to_vec()),
    };
    let names = if is_pie { slices(chart) } else { names };
    let below = root.titled(&cut(title, chart.width), ("sans-serif", 20))?;
    let longest = names.iter().map(|name| text_width(name)).max();
    let legend_width = longest.map_or(0, |longest| (longest + 48).min(chart.width * 2 / 5));
    let (area, legend) = below.split_horizontally(chart.width - legend_width);
    if is_pie {
        draw_pie(chart, &area)?;
    } else {
        draw_axes(chart, &area)?;
    }
    let line = (below.dim_in_pixel().1 / (SERIES_MAX as u32 + 2)).clamp(8, 24);
    let font = (FONT.0, line.min(FONT.1)).into_text_style(&legend);
    let font = font.pos(Pos::new(HPos::Left, VPos::Center));
    for (number, name) in names.iter().enumerate() {
        let y = i32::try_from(line)? * (i32::try_from(number)? + 1);
        legend.draw(&Rectangle::new(
            [(8, y - 4), (24, y + 4)],
            color(number).filled(),
        ))?;
        legend.draw(&Text::new(
            cut(name, legend_width - 32),
            (30, y),
            font.clone(),
        ))?;
    }
    root.present()?;
    Ok(())
}

fn color(series: usize) -> RGBColor {
    let [_, red, green, blue] = COLORS[series].to_be_bytes();
    RGBColor(red, green, blue)
}

/// Returns the numbers of a pie as parts of the greatest, so that their sum is finite.
fn sizes(chart: &Chart) -> Vec<f64> {
    let greatest = chart.numbers().fold(0.0, f64::max);
    chart.numbers().map(|number| number / greatest).collect()
}

/// Returns what the legend says of each slice.
fn slices(chart: &Chart) -> Vec<String> {
    let sizes = sizes(chart);
    let sum: f64 = sizes.iter().sum();
    let rows = chart.rows.iter().zip(chart.numbers()).zip(&sizes);
    let name = rows.map(|((row, number), size)| {
        let (number, percent) = (rounded(number), 100.0 * size / sum);
        format!("{}: {number} ({percent:.1} %)", row.label)
    });
    name.collect()
}

fn draw_pie(chart: &Chart, area: &Area) -> anyhow::Result<()> {
    let (width, height) = area.dim_in_pixel();
    // plotters draws pies at pixels of the whole picture.
    let (left, top) = area.get_base_pixel();
    let center = (
        left + i32::try_from(width / 2)?,
        top + i32::try_from(height / 2)?,
    );
    let radius = f64::from(width.min(height)) * 0.45;
    let sizes = sizes(chart);
    let colors: Vec<RGBColor> = (0..sizes.len()).map(color).collect();
    // The legend has the labels.
    let labels = vec![""; sizes.len()];
    let mut pie = Pie::new(&center, &radius, &sizes, &colors, &labels);
    pie.start_angle(-90.0);
    area.draw(&pie)?;
    Ok(())
}

/// Where rows and numbers of a chart are.
struct Layout<'a> {
    chart: &'a Chart,
    /// The place of each row on its axis.
    places: Vec<f64>,
    /// Whether rows are one below the other, which leaves room for wide labels of bars.
    is_lying: bool,
    numbers: Axis,
}

fn draw_axes(chart: &Chart, area: &Area) -> anyhow::Result<()> {
    let (width, height) = area.dim_in_pixel();
    let is_bar = chart.kind == ChartKind::Bar;
    let labels = chart.rows.iter().map(|row| text_width(&row.label));
    let widest = labels.max().unwrap_or_default().min(width * 2 / 5) + 2 * CHARACTER;
    let room = width.saturating_sub(LEFT + 2 * MARGIN);
    let count = u32::try_from(chart.rows.len())?;
    let is_lying = is_bar && widest * count > room;
    let (fit, left) = if is_lying {
        (height.saturating_sub(BOTTOM + 2 * MARGIN) / LINE, widest)
    } else {
        (room / widest, LEFT)
    };
    let layout = Layout {
        chart,
        places: places(chart),
        is_lying,
        numbers: number_axis(chart),
    };
    let rows = layout.row_axis(count.div_ceil(fit.max(1)) as usize, widest);
    let (first, last) = (rows.ends.0, rows.ends.1);
    let (x, y) = if is_lying {
        (layout.numbers.clone(), rows)
    } else {
        (rows, layout.numbers.clone())
    };
    let left_out = chart
        .numbers()
        .filter(|number| position(chart, *number).is_none());
    let note = match left_out.count() {
        0 => String::new(),
        count => {
            format!("not on a logarithmic axis: {count} of the numbers, which are not above 0")
        }
    };
    let mut plot = ChartBuilder::on(area)
        .margin(MARGIN)
        .margin_right(if is_lying { LEFT } else { MARGIN })
        .x_label_area_size(if note.is_empty() { BOTTOM } else { 2 * BOTTOM })
        .y_label_area_size(left)
        .build_cartesian_2d(x, y)?;
    let mut mesh = plot.configure_mesh();
    if is_lying {
        mesh.disable_y_mesh();
    } else if is_bar {
        mesh.disable_x_mesh();
    }
    mesh.light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .label_style(FONT)
        .x_desc(note)
        .draw()?;
    if is_bar {
        layout.draw_bars(&mut plot)?;
    } else {
        layout.draw_lines(&mut plot)?;
    }
    if layout.numbers.ends.0 < 0.0 && !chart.log_y {
        let zero = [layout.point(first, 0.0), layout.point(last, 0.0)];
        plot.draw_series([PathElement::new(zero, BLACK)])?;
    }
    Ok(())
}

fn places(chart: &Chart) -> Vec<f64> {
    let places = chart.rows.iter().enumerate().map(|(number, row)| {
        if chart.log_x {
            row.label_number().log2()
        } else {
            number as f64
        }
    });
    places.collect()
}

impl Layout<'_> {
    /// Returns the axis of rows, of which every `step`th has a label.
    fn row_axis(&self, step: usize, label_width: u32) -> Axis {
        let pad = if self.chart.log_x { 0.2 } else { 0.5 };
        let (first, last) = (
            self.places[0] - pad,
            self.places[self.places.len() - 1] + pad,
        );
        let rows = self.places.iter().zip(&self.chart.rows).step_by(step);
        let ticks = rows.map(|(place, row)| (*place, cut(&row.label, label_width)));
        Axis {
            // From top to bottom.
            ends: if self.is_lying {
                (last, first)
            } else {
                (first, last)
            },
            ticks: ticks.collect(),
        }
    }

    fn point(&self, place: f64, number: f64) -> (f64, f64) {
        if self.is_lying {
            (number, place)
        } else {
            (place, number)
        }
    }

    /// Draws the bars of each row beside each other, with their numbers where these have room.
    fn draw_bars(&self, plot: &mut Plot) -> anyhow::Result<()> {
        let (width, height) = plot.plotting_area().dim_in_pixel();
        let count = self.chart.series.len() as f64;
        let pixels = f64::from(if self.is_lying { height } else { width });
        let thickness = pixels * BAR_SHARE / count / self.places.len() as f64;
        let base = if self.chart.log_y {
            self.numbers.ends.0
        } else {
            0.0
        };
        for (row, place) in self.chart.rows.iter().zip(&self.places) {
            for (series, number) in row.numbers.iter().enumerate() {
                let Some((number, end)) =
                    number.and_then(|number| Some((number, position(self.chart, number)?)))
                else {
                    continue;
                };
                let from = place + BAR_SHARE * (series as f64 / count - 0.5);
                let to = from + BAR_SHARE / count;
                let corners = [self.point(from, base), self.point(to, end)];
                plot.draw_series([Rectangle::new(corners, color(series).filled())])?;
                let text = rounded(number);
                let (size, offset, anchor) = if self.is_lying {
                    (LINE - 4, (4, 0), Pos::new(HPos::Left, VPos::Center))
                } else if end < base {
                    (text_width(&text), (0, 2), Pos::new(HPos::Center, VPos::Top))
                } else {
                    (
                        text_width(&text),
                        (0, -2),
                        Pos::new(HPos::Center, VPos::Bottom),
                    )
                };
                if thickness >= f64::from(size) {
                    let style = FONT.into_text_style(plot.plotting_area()).pos(anchor);
                    let middle = self.point(f64::midpoint(from, to), end);
                    let text = EmptyElement::at(middle) + Text::new(text, offset, style);
                    plot.draw_series([text])?;
                }
            }
        }
        Ok(())
    }

    fn draw_lines(&self, plot: &mut Plot) -> anyhow::Result<()> {
        for series in 0..self.chart.series.len() {
            let rows = self.chart.rows.iter().zip(&self.places);
            let points = rows.filter_map(|(row, place)| {
                Some((*place, position(self.chart, row.numbers[series]?)?))
            });
            let points: Vec<(f64, f64)> = points.collect();
            let line = match self.chart.kind {
                ChartKind::LineNoCurve => points.clone(),
                _ => curve(&points),
            };
            plot.draw_series(LineSeries::new(line, color(series).stroke_width(2)))?;
            // A point alone would be no line.
            if self.chart.kind == ChartKind::Line || points.len() == 1 {
                let dot = |point| Circle::new(point, 3, color(series).filled());
                plot.draw_series(points.into_iter().map(dot))?;
            }
        }
        Ok(())
    }
}

/// Returns points on a curve through `points`, which rises and falls only where they do.
///
/// Cubic pieces with the slopes of M. Steffen, "A simple method for monotonic interpolation in one dimension", Astronomy and
/// Astrophysics 239 (1990).
fn curve(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() < 3 || points.len() > CURVE_POINTS_MAX {
        return points.to_vec();
    }
    let width = |piece: usize| points[piece + 1].0 - points[piece].0;
    let secant = |piece: usize| (points[piece + 1].1 - points[piece].1) / width(piece);
    let last = points.len() - 1;
    let slope = |point: usize| {
        let (before, after) = (point.saturating_sub(1), point.min(last - 1));
        let (one, next) = (secant(before), secant(after));
        let parabola = (one * width(after) + next * width(before)) / (width(before) + width(after));
        let least = one.abs().min(next.abs()).min(parabola.abs() / 2.0);
        (one.signum() + next.signum()) * least
    };
    let piece = |piece: usize| {
        let ((x, y), width, secant) = (points[piece], width(piece), secant(piece));
        let (start, end) = (slope(piece), slope(piece + 1));
        (1..=PIECES).map(move |step| {
            let t = f64::from(step) / f64::from(PIECES);
            let cubic = (start + end - 2.0 * secant) * t + 3.0 * secant - 2.0 * start - end;
            (x + width * t, y + width * t * (start + t * cubic))
        })
    };
    points[..1]
        .iter()
        .copied()
        .chain((0..last).flat_map(piece))
        .collect()
}

/// Returns about how many pixels a text of [`FONT`] takes.
fn text_width(text: &str) -> u32 {
    u32::try_from(text.chars().count()).map_or(u32::MAX, |count| count.saturating_mul(CHARACTER))
}

/// Cuts a text that is wider than `pixels`.
fn cut(text: &str, pixels: u32) -> String {
    let fit = (pixels / CHARACTER) as usize;
    if text.chars().count() <= fit {
        return text.to_owned();
    }
    let start = text.chars().take(fit.saturating_sub(1));
    start.chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(kind: ChartKind, rows: &[(&str, f64)]) -> Chart {
        let mut chart = Chart::new(kind, "t", ["s"]);
        rows.iter()
            .for_each(|(label, number)| chart.push(*label, [Some(*number)]));
        chart
    }

    #[test]
    fn each_kind_draws_each_number_and_escapes_text() {
        use ChartKind::{Bar, Line, LineNoCurve, LineNoDot};
        let rows = [("<a&\"", 1.0), ("b", -2.0), ("c", 1e300), ("d", 0.0)];
        for (kind, shape, count) in [
            (Line, "<circle", 4),
            (LineNoDot, "<circle", 0),
            (LineNoCurve, "<circle", 0),
            (Bar, "<rect", 4),
        ] {
            let svg = svg(&chart(kind, &rows)).unwrap();
            assert!(
                svg.contains("&lt;a&amp;&quot;") && !svg.contains("<a&"),
                "{svg}"
            );
            assert_eq!(svg.matches(shape).count(), count, "{kind:?}: {svg}");
        }
        let pie = svg(&chart(
            ChartKind::Pie,
            &[("<a&\"", 1e300), ("b", 3e300 / 10.0)],
        ))
        .unwrap();
        assert_eq!(pie.matches("<polygon").count(), 2);
        assert!(pie.contains("&lt;a&amp;&quot;: 1e300 (76.9 %)"), "{pie}");
        let mut zero = chart(Line, &rows);
        zero.log_y = true;
        let svg = svg(&zero).unwrap();
        assert!(
            svg.contains("2 of the numbers") && svg.matches("<circle").count() == 2,
            "{svg}"
        );
    }

    #[test]
    fn extremes_are_drawn() {
        use ChartKind::{Bar, Line, LineNoCurve, LineNoDot};
        let many: Vec<_> = (0..10_000).map(|number| ("x", f64::from(number))).collect();
        for rows in [
            &many[..],
            &[("a", 1e300), ("b", -1e300)],
            &[("a", 1e-300)],
            &[("a", 0.0)],
        ] {
            for kind in [Line, LineNoDot, LineNoCurve, Bar] {
                for (is_log, size) in [(false, 100), (true, 100), (false, 4_000)] {
                    let mut chart = chart(kind, rows);
                    (chart.log_y, chart.width, chart.height) = (is_log, size, size);
                    assert!(svg(&chart).unwrap().ends_with("</svg>\n"));
                }
            }
        }
    }

    #[test]
    fn curves_pass_through_their_points_and_no_further() {
        let points = [(0.0, 0.0), (1.0, 10.0), (4.0, 10.0), (5.0, 3.0)];
        let curve = curve(&points);
        assert!(points.iter().all(|point| curve.contains(point)));
        assert!(curve.iter().all(|(_, y)| (0.0..=10.0).contains(y)));
    }
}
