//! One chart as SVG: figures by the number of connections, which grows by powers of two.

use std::ops::Range;

use anyhow::Context;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::prelude::{
    ChartBuilder, Circle, DashedLineSeries, IntoDrawingArea, LineSeries, PathElement, RGBColor,
    SVGBackend, Text,
};
use plotters::style::{Color, ShapeStyle};

const SIZE: (u32, u32) = (960, 460);
/// Beside the chart, for the names of the lines.
const LEGEND_WIDTH: u32 = 240;
const LEGEND_LINE: i32 = 26;
const LEGEND_TOP: i32 = 60;
const FONT: &str = "sans-serif";
/// Steps between labels of a linear axis.
const STEPS: f64 = 6.0;

/// How the axis of figures grows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scale {
    Linear,
    Logarithmic,
}

/// Figures of one tier of one run.
#[derive(Debug)]
pub(super) struct ChartLine {
    pub(super) name: String,
    pub(super) color: [u8; 3],
    /// 0 is drawn solid, others dashed, each shorter.
    pub(super) run: usize,
    /// Connections and figure.
    pub(super) points: Vec<(usize, f64)>,
}

#[derive(Debug)]
pub(super) struct Chart {
    pub(super) title: &'static str,
    pub(super) scale: Scale,
    pub(super) lines: Vec<ChartLine>,
}

impl Chart {
    pub(super) fn svg(&self) -> anyhow::Result<String> {
        let mut svg = String::new();
        self.draw(&mut svg)
            .with_context(|| format!("drawing {:?}", self.title))?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> anyhow::Result<()> {
        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        let (area, legend) = root.split_horizontally(SIZE.0 - LEGEND_WIDTH);
        let connections = self.connections();
        let ticks = self.ticks();
        let (first, last) = ends(&connections);
        let (bottom, top) = ends(&ticks);
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, (FONT, 20))
            .margin(12)
            .x_label_area_size(46)
            .y_label_area_size(70)
            .build_cartesian_2d(
                Axis {
                    ends: (first - 0.2, last + 0.2),
                    ticks: connections,
                },
                Axis {
                    ends: (bottom, top),
                    ticks,
                },
            )?;
        chart
            .configure_mesh()
            .light_line_style(RGBColor(255, 255, 255))
            .bold_line_style(RGBColor(225, 225, 225))
            .x_desc("connections")
            .label_style((FONT, 14))
            .axis_desc_style((FONT, 15))
            .x_label_formatter(&|x| format!("{:.0}", x.exp2()))
            .y_label_formatter(&|y| self.label(*y))
            .draw()?;
        for (number, line) in self.lines.iter().enumerate() {
            let style = line.style();
            let points: Vec<(f64, f64)> = line
                .points
                .iter()
                .map(|(count, figure)| (position(*count), self.place(*figure)))
                .collect();
            match line.dash() {
                None => chart.draw_series(LineSeries::new(points.clone(), style))?,
                Some(dash) => {
                    chart.draw_series(DashedLineSeries::new(points.clone(), dash, 4, style))?
                }
            };
            chart.draw_series(
                points
                    .into_iter()
                    .map(|point| Circle::new(point, 4, style.filled())),
            )?;
            let y = LEGEND_TOP + LEGEND_LINE * i32::try_from(number)?;
            let sample = [(0, y), (40, y)];
            match line.dash() {
                None => legend.draw(&PathElement::new(sample, style))?,
                Some(dash) => legend.draw(&plotters::element::DashedPathElement::new(
                    sample, dash, 4, style,
                ))?,
            }
            legend.draw(&Circle::new((20, y), 4, style.filled()))?;
            legend.draw(&Text::new(line.name.clone(), (48, y - 7), (FONT, 14)))?;
        }
        root.present()?;
        Ok(())
    }

    /// Where the numbers of connections are, all of them.
    fn connections(&self) -> Vec<f64> {
        let counts = self.lines.iter().flat_map(|line| &line.points);
        let mut counts: Vec<usize> = counts.map(|(count, _)| *count).collect();
        counts.sort_unstable();
        counts.dedup();
        counts.into_iter().map(position).collect()
    }

    fn figures(&self) -> impl Iterator<Item = f64> {
        let points = self.lines.iter().flat_map(|line| &line.points);
        points
            .map(|(_, figure)| *figure)
            .filter(|figure| *figure > 0.0)
    }

    /// Where labels of figures are; the first and the last are the ends of the axis.
    fn ticks(&self) -> Vec<f64> {
        let greatest = self.figures().fold(f64::MIN_POSITIVE, f64::max);
        match self.scale {
            Scale::Linear => {
                let step = round_up(greatest / STEPS);
                (0..)
                    .map(|number| f64::from(number) * step)
                    .take_while(|tick| *tick < greatest + step)
                    .collect()
            }
            Scale::Logarithmic => {
                let least = self.figures().fold(greatest, f64::min);
                let mut ticks = vec![round_down(least)];
                while let Some(last) = ticks.last().copied().filter(|last| *last < greatest) {
                    ticks.push(round_up(last * 1.5));
                }
                ticks.into_iter().map(f64::log10).collect()
            }
        }
    }

    fn place(&self, figure: f64) -> f64 {
        match self.scale {
            Scale::Linear => figure,
            Scale::Logarithmic => figure.max(f64::MIN_POSITIVE).log10(),
        }
    }

    fn label(&self, place: f64) -> String {
        match self.scale {
            Scale::Linear if place >= 10_000.0 => format!("{:.0}k", place / 1000.0),
            Scale::Linear => format!("{place:.0}"),
            // Ticks are 1, 2 and 5 times powers of ten.
            Scale::Logarithmic => {
                let digits = if place < -0.01 {
                    (-place).ceil() as usize
                } else {
                    0
                };
                format!("{:.digits$}", 10_f64.powf(place))
            }
        }
    }
}

/// An axis that is labelled where it is told to be.
struct Axis {
    ends: (f64, f64),
    ticks: Vec<f64>,
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (low, high): (i32, i32)) -> i32 {
        let share = (value - self.ends.0) / (self.ends.1 - self.ends.0);
        // Pixels, so the cast loses nothing that is seen.
        low + (share * f64::from(high - low)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.ends.0..self.ends.1
    }
}

impl ChartLine {
    fn style(&self) -> ShapeStyle {
        let [red, green, blue] = self.color;
        RGBColor(red, green, blue).stroke_width(2)
    }

    /// Length of its dashes; none: it is solid.
    fn dash(&self) -> Option<u32> {
        match self.run {
            0 => None,
            1 => Some(9),
            _ => Some(3),
        }
    }
}

fn position(connections: usize) -> f64 {
    // Far below 2^52, so the cast is exact.
    (connections as f64).log2()
}

/// The first and the last.
fn ends(places: &[f64]) -> (f64, f64) {
    let ends = places.first().copied().zip(places.last().copied());
    ends.unwrap_or((0.0, 1.0))
}

/// The next of 1, 2, 5, 10, 20, 50, ... that is not less.
fn round_up(figure: f64) -> f64 {
    let power = 10_f64.powf(figure.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    // Against what rounding leaves.
    steps
        .into_iter()
        .find(|step| *step >= figure * 0.999)
        .unwrap_or(figure)
}

/// The next of 1, 2, 5, 10, 20, 50, ... that is not greater.
fn round_down(figure: f64) -> f64 {
    let power = 10_f64.powf(figure.log10().floor());
    let steps = [5.0, 2.0, 1.0].map(|step| step * power);
    steps
        .into_iter()
        .find(|step| *step <= figure * 1.001)
        .unwrap_or(figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(scale: Scale, points: &[(usize, f64)]) -> Chart {
        let line = ChartLine {
            name: "memory".to_owned(),
            color: [0, 0, 0],
            run: 0,
            points: points.to_vec(),
        };
        Chart {
            title: "t",
            scale,
            lines: vec![line],
        }
    }

    fn labels(chart: &Chart) -> Vec<String> {
        chart
            .ticks()
            .iter()
            .map(|tick| chart.label(*tick))
            .collect()
    }

    #[test]
    fn a_linear_axis_begins_at_nothing_and_ends_above_all() {
        let linear = chart(Scale::Linear, &[(1, 9_000.0), (128, 94_500.0)]);
        assert_eq!(labels(&linear), ["0", "20k", "40k", "60k", "80k", "100k"]);
    }

    #[test]
    fn a_logarithmic_axis_spans_all() {
        let figures = [(1, 0.03), (128, 1.0), (4096, 90.0)];
        let logarithmic = chart(Scale::Logarithmic, &figures);
        let wanted = [
            "0.02", "0.05", "0.1", "0.2", "0.5", "1", "2", "5", "10", "20", "50", "100",
        ];
        assert_eq!(labels(&logarithmic), wanted);
    }

    #[test]
    fn all_points_are_drawn() {
        let svg = chart(Scale::Linear, &[(1, 1.0), (2, 2.0), (4096, 3.0)])
            .svg()
            .unwrap();
        // One more in the legend.
        assert_eq!(svg.matches("<circle").count(), 4);
        assert!(svg.contains("4096"));
        assert!(chart(Scale::Logarithmic, &[]).svg().is_ok());
    }
}
