//! The axes of a chart: where numbers are, and which have labels.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use crate::report::plot::Chart;

/// Steps between the labels of a linear axis, and powers of ten on a logarithmic one with labels at 2 and 5.
const STEPS: f64 = 6.0;

/// An axis that is labelled where it is told to be.
#[derive(Clone)]
pub(super) struct Axis {
    pub(super) ends: (f64, f64),
    pub(super) ticks: Vec<(f64, String)>,
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (low, high): (i32, i32)) -> i32 {
        let share = (value - self.ends.0) / (self.ends.1 - self.ends.0);
        // Pixels, so the cast loses nothing that is seen.
        low + (share * f64::from(high - low)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.iter().map(|(tick, _)| *tick).collect()
    }

    fn range(&self) -> Range<f64> {
        self.ends.0..self.ends.1
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        let tick = self.ticks.iter().find(|(tick, _)| tick == value);
        tick.map(|(_, label)| label.clone()).unwrap_or_default()
    }
}

/// Returns where a number is on its axis; none if a logarithmic one lacks it.
pub(super) fn position(chart: &Chart, number: f64) -> Option<f64> {
    if chart.log_y {
        (number > 0.0).then(|| number.log10())
    } else {
        Some(number)
    }
}

/// Returns the axis of numbers. A linear one has 0, and labels at its ends.
pub(super) fn number_axis(chart: &Chart) -> Axis {
    let positions = chart.numbers().filter_map(|number| position(chart, number));
    let positions = positions.chain((!chart.log_y).then_some(0.0));
    let ends = positions.map(|position| (position, position));
    let ends = ends.reduce(|(least, most), (one, _)| (least.min(one), most.max(one)));
    let (least, greatest) = ends.unwrap_or_default();
    if chart.log_y {
        log_axis(least, greatest)
    } else {
        linear_axis(least, greatest)
    }
}

fn linear_axis(least: f64, greatest: f64) -> Axis {
    let span = greatest - least;
    let step = round_up(if span > 0.0 { span / STEPS } else { 1.0 });
    let digits = digits(step, 1);
    // A step is at least a sixth of the span, so there are few and the casts lose nothing.
    let (from, to) = (
        (least / step).floor() as i32,
        (greatest / step).ceil() as i32,
    );
    let ticks = (from..=to.max(from + 1)).map(|number| f64::from(number) * step);
    let ticks: Vec<_> = ticks
        .map(|tick| (tick, number_text(tick, digits)))
        .collect();
    Axis {
        ends: (ticks[0].0, ticks[ticks.len() - 1].0),
        ticks,
    }
}

/// Returns an axis with labels at 1, 2 and 5 times powers of ten, or at some of the powers if there are many.
///
/// `least` and `greatest` are logarithms.
fn log_axis(least: f64, greatest: f64) -> Axis {
    // At least three quarters of a power, where there are two labels.
    let pad = (0.75 - (greatest - least)).max(0.1) / 2.0;
    let ends = (least - pad, greatest + pad);
    let powers = greatest - least;
    let steps: &[f64] = if powers > STEPS {
        &[1.0]
    } else {
        &[1.0, 2.0, 5.0]
    };
    // Few powers, of which every so many has a label: the casts lose nothing.
    let every = (powers / 8.0).ceil().max(1.0);
    let numbers = (ends.0 / every).floor() as i32..=(ends.1 / every).ceil() as i32;
    let ticks = numbers.flat_map(|number| {
        let power = number * every as i32;
        steps.iter().map(move |step| {
            let number = step * 10_f64.powi(power);
            let label = number_text(number, digits(number, 1));
            (f64::from(power) + step.log10(), label)
        })
    });
    let ticks = ticks.filter(|(tick, _)| (ends.0..=ends.1).contains(tick));
    Axis {
        ends,
        ticks: ticks.collect(),
    }
}

/// Returns the next of 1, 2, 5, 10, 20, 50, ... that is not less.
fn round_up(number: f64) -> f64 {
    let power = 10_f64.powf(number.log10().floor());
    let mut steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power).into_iter();
    // Against what rounding leaves.
    steps.find(|step| *step >= number * 0.999).unwrap_or(number)
}

/// Returns how many digits after the point show `significant` ones of `number`.
fn digits(number: f64, significant: i32) -> usize {
    // Few digits and small exponents: the casts lose nothing.
    let exponent = number.abs().max(f64::MIN_POSITIVE).log10() + 1e-9;
    (significant - 1 - exponent.floor() as i32).max(0) as usize
}

fn number_text(number: f64, digits: usize) -> String {
    match number.abs() {
        0.0 => "0".to_owned(),
        1e-4..1e6 => format!("{number:.digits$}"),
        _ => format!("{number:.1e}").replace(".0e", "e"),
    }
}

/// Returns a number with three digits or more.
pub(super) fn rounded(number: f64) -> String {
    number_text(number, digits(number, 3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::plot::ChartKind;

    #[test]
    fn axes_span_all_numbers() {
        for (numbers, is_log, wanted) in [
            (
                &[9_000.0, 94_500.0][..],
                false,
                "0 20000 40000 60000 80000 100000",
            ),
            (&[-3.0, 1.0], false, "-3 -2 -1 0 1"),
            (&[5.0, 5.0], false, "0 1 2 3 4 5"),
            (&[0.0], false, "0 1"),
            (&[1e300], false, "0 2e299 4e299 6e299 8e299 1e300"),
            (
                &[0.03, 1.0, 90.0],
                true,
                "0.05 0.1 0.2 0.5 1 2 5 10 20 50 100",
            ),
            (&[7.0, 7.0], true, "5 10"),
            (
                &[1e-300, 1e300],
                true,
                "1e-300 1e-225 1e-150 1e-75 1 1e75 1e150 1e225 1e300",
            ),
            (&[0.0, -1.0], true, "0.5 1 2"),
        ] {
            let mut chart = Chart::new(ChartKind::Bar, "", [""]);
            numbers
                .iter()
                .for_each(|number| chart.push("a", [Some(*number)]));
            chart.log_y = is_log;
            let ticks = number_axis(&chart)
                .ticks
                .into_iter()
                .map(|(_, label)| label);
            assert_eq!(ticks.collect::<Vec<_>>().join(" "), wanted);
        }
    }
}
