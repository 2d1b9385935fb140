//! The calendar of PostgreSQL's dates: days since 2000-01-01 to year, month and day, and back.
//!
//! It is the Gregorian calendar for all years, also for those before it was introduced. Years are counted as
//! astronomers do: year 0 is 1 BC, and year -1 is 2 BC. The algorithms are `days_from_civil` and `civil_from_days` of
//! Howard Hinnant ("chrono-Compatible Low-Level Date Algorithms", 2021). They divide time into eras of 400 years that
//! begin in March, so that a leap day is the last day of its year.

/// One day in microseconds.
pub(super) const MICROSECONDS_PER_DAY: i64 = 86_400_000_000;

const DAYS_PER_ERA: i64 = 146_097;

/// From 0000-03-01, where an era begins, to 2000-01-01.
const DAYS_BEFORE_2000: i64 = 730_425;

/// The days from 2000-01-01 to a date; `None` if there is no such date.
///
/// The year must be within ten million years, or the result may not fit.
pub(super) fn days_from_date(year: i64, month: i64, day: i64) -> Option<i64> {
    let year_from_march = if month <= 2 { year - 1 } else { year };
    let month_from_march = (month + 9) % 12;
    let year_of_era = year_from_march.rem_euclid(400);
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let era = year_from_march.div_euclid(400);
    let days = era * DAYS_PER_ERA + day_of_era - DAYS_BEFORE_2000;
    // A date that does not exist, such as February 30, leads to the days of another date.
    (date_from_days(days) == (year, month, day)).then_some(days)
}

/// Year, month and day of a date that is `days` after 2000-01-01.
pub(super) fn date_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + DAYS_BEFORE_2000;
    let era = days.div_euclid(DAYS_PER_ERA);
    let day_of_era = days.rem_euclid(DAYS_PER_ERA);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the days of 800 years one by one, by the rule of leap years.
    #[test]
    fn days_follow_each_other() {
        let mut days = days_from_date(-400, 1, 1).unwrap();
        for year in -400..400 {
            let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let february = if is_leap { 29 } else { 28 };
            let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
            for (month, length) in (1..).zip(lengths) {
                for day in 1..=length {
                    assert_eq!(days_from_date(year, month, day), Some(days));
                    assert_eq!(date_from_days(days), (year, month, day));
                    days += 1;
                }
                for day in [-1, 0, length + 1, 99] {
                    assert_eq!(days_from_date(year, month, day), None);
                }
            }
            for month in [-1, 0, 13, 99] {
                assert_eq!(days_from_date(year, month, 1), None);
            }
        }
    }
}
