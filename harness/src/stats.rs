//! Medians and ratios, as the scoreboard and the benchmark state them.

/// The middle value; of an even number the mean of the two in the middle. `None` of nothing, and where a value is not
/// a finite number.
pub fn median(values: &[f64]) -> Option<f64> {
    if values.iter().any(|v| !v.is_finite()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    match sorted.len() % 2 {
        0 => Some(f64::midpoint(*sorted.get(sorted.len() / 2 - 1)?, upper)),
        _ => Some(upper),
    }
}

/// `1.04x`, `12.3x`, `240x`: three digits say all that a measurement knows.
pub fn times(ratio: f64) -> String {
    if ratio < 9.995 {
        format!("{ratio:.2}x")
    } else if ratio < 99.95 {
        format!("{ratio:.1}x")
    } else {
        format!("{ratio:.0}x")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
        assert_eq!(median(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn ratios_have_three_digits() {
        let shown: Vec<String> = [0.955, 1.0, 9.999, 12.34, 99.96, 240.4].into_iter().map(times).collect();
        assert_eq!(shown, ["0.95x", "1.00x", "10.0x", "12.3x", "100x", "240x"]);
    }
}
