//! Axes with round numbers on them.

/// A straight scale with its ticks.
#[derive(Debug, Clone)]
pub struct Axis {
    /// What is measured along it.
    pub label: String,
    /// Value at its start.
    pub low: f64,
    /// Value at its end; above `low`.
    pub high: f64,
    /// Distance of the ticks.
    step: f64,
    /// Values at which it is marked.
    pub ticks: Vec<f64>,
}

impl Axis {
    /// From `low` to at least `high`, marked and ended at about `count` multiples of 1, 2 or 5 times a power of ten.
    pub fn round(label: &str, low: f64, high: f64, count: usize) -> Self {
        let span = if high > low { high - low } else { 1.0 };
        let step = round_step(span / count as f64);
        Self::with_step(label, low, low + span, step)
    }

    /// As [`Axis::round`], over whole numbers.
    pub fn whole(label: &str, low: f64, high: f64, count: usize) -> Self {
        let step = round_step((high - low).max(1.0) / count as f64).max(1.0);
        let mut axis = Self::with_step(label, low, high.max(low + 1.0), step);
        // A chart over whole numbers need not run on to the next tick.
        axis.high = high.max(low + 1.0);
        axis.ticks.retain(|t| *t <= axis.high);
        axis
    }

    /// Adds room of `share` of the span on both sides, for marks that sit on the ends.
    pub fn padded(mut self, share: f64) -> Self {
        let room = share * (self.high - self.low);
        self.low -= room;
        self.high += room;
        self
    }

    fn with_step(label: &str, low: f64, high: f64, step: f64) -> Self {
        // A hair of tolerance, so that 0.6 / 0.2 counts as 3.
        let first = (low / step + 1e-9).floor() as i64;
        let last = (high / step - 1e-9).ceil() as i64;
        let ticks: Vec<f64> = (first..=last).map(|i| i as f64 * step).collect();
        Self { label: label.to_string(), low: first as f64 * step, high: last as f64 * step, step, ticks }
    }

    /// Where `value` lies, 0 at the start and 1 at the end.
    pub fn place(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }

    /// The text at a tick, with as many decimals as the ticks need.
    pub fn text(&self, tick: f64) -> String {
        let digits = (-self.step.log10() - 1e-9).ceil().max(0.0) as usize;
        // The sum turns a negative zero into zero.
        format!("{:.digits$}", tick + 0.0)
    }
}

/// The least of 1, 2, 5 times a power of ten that is not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf((least.log10() + 1e-9).floor());
    [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= least * (1.0 - 1e-9)).unwrap_or(power)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis) -> Vec<String> {
        axis.ticks.iter().map(|t| axis.text(*t)).collect()
    }

    #[test]
    fn ticks_are_round_and_cover_the_values() {
        let axis = Axis::round("y", 1.0, 1.583, 5);
        assert_eq!(texts(&axis), ["1.0", "1.2", "1.4", "1.6"]);
        assert!((axis.place(1.3) - 0.5).abs() < 1e-12);
        assert_eq!(texts(&Axis::round("y", 0.0, 0.6, 3)), ["0.0", "0.2", "0.4", "0.6"]);
        assert_eq!(texts(&Axis::round("y", -0.03, 0.02, 5)), ["-0.03", "-0.02", "-0.01", "0.00", "0.01", "0.02"]);
        assert_eq!(texts(&Axis::round("y", 0.0, 12_000.0, 4)), ["0", "5000", "10000", "15000"]);
    }

    #[test]
    fn whole_numbers_end_where_they_end() {
        let axis = Axis::whole("K", 0.0, 7.0, 8);
        assert_eq!((texts(&axis).len(), axis.high), (8, 7.0));
        let long = Axis::whole("step", 0.0, 1234.0, 6);
        assert_eq!((texts(&long).join(" "), long.high), ("0 500 1000".to_string(), 1234.0));
    }

    #[test]
    fn a_single_value_has_an_axis() {
        let axis = Axis::round("y", 2.0, 2.0, 5);
        assert!(axis.low <= 2.0 && axis.high > 2.0 && axis.ticks.len() > 1);
        assert!(Axis::whole("x", 3.0, 3.0, 5).place(3.0).is_finite());
    }
}
