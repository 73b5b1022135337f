//! Dates for templates that print the day: the part of C's `strftime` that they use, in UTC and English.

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// 1 January 1970 was the first of these.
const WEEKDAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const DAY_SECONDS: u64 = 86_400;

/// Formats a time, given in seconds since 1970 (UTC).
///
/// # Errors
/// Names the directive that is not known.
pub(super) fn strftime(format: &str, seconds: u64) -> Result<String, String> {
    let days = seconds / DAY_SECONDS;
    let (year, month, day) = civil(days);
    let (month_name, weekday) = (MONTHS[month as usize - 1], WEEKDAYS[(days % 7) as usize]);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = rest.next();
        let bare = directive == Some('-');
        if bare {
            directive = rest.next();
        }
        let two = |n: u64| if bare { n.to_string() } else { format!("{n:02}") };
        out += &match directive {
            Some('Y') => year.to_string(),
            Some('y') => two(year % 100),
            Some('m') => two(month),
            Some('d') => two(day),
            Some('B') => month_name.to_owned(),
            Some('b') => month_name[..3].to_owned(),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('H') => two(hour),
            Some('I') => two((hour + 11) % 12 + 1),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('M') => two(minute),
            Some('S') => two(second),
            Some('%') => "%".to_owned(),
            other => return Err(format!("strftime_now: directive %{} is not known", other.unwrap_or(' '))),
        };
    }
    Ok(out)
}

/// Year, month and day of a day counted from 1 January 1970 (Hinnant, "chrono-compatible low-level date algorithms":
/// years begin in March, so that the leap day is the last).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn known_days() {
        for (seconds, expected) in [
            (0, "Thursday 01 January 1970 00:00:00 12AM"),
            (951_827_696, "Tuesday 29 February 2000 12:34:56 12PM"),
            (1_735_689_599, "Tuesday 31 December 2024 23:59:59 11PM"),
        ] {
            assert_eq!(strftime("%A %d %B %Y %H:%M:%S %I%p", seconds).unwrap(), expected);
        }
        assert_eq!(strftime("%-d %b %y %%", 4 * DAY_SECONDS).unwrap(), "5 Jan 70 %");
        assert_eq!(strftime("%Q", 0).unwrap_err(), "strftime_now: directive %Q is not known");
    }
}
