//! `strftime` in UTC and in English, for templates that print the date.

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
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

struct Civil {
    year: i64,
    month: i64,
    day: i64,
}

/// Days since 1970-01-01 to a proleptic Gregorian date, by 400-year eras that start in March.
fn civil_from_days(days: i64) -> Civil {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    Civil {
        year: year_of_era + era * 400 + i64::from(month <= 2),
        month,
        day: day_of_year - (153 * march_month + 2) / 5 + 1,
    }
}

fn day_of_year(date: &Civil) -> i64 {
    let leap = date.year % 4 == 0 && (date.year % 100 != 0 || date.year % 400 == 0);
    let lengths = [31, 28 + i64::from(leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    lengths[..date.month as usize - 1].iter().sum::<i64>() + date.day
}

/// An unknown directive is kept as written.
pub fn format_utc(unix_s: i64, format: &str) -> String {
    let date = civil_from_days(unix_s.div_euclid(86_400));
    let second_of_day = unix_s.rem_euclid(86_400);
    let (hour, minute, second) = (second_of_day / 3_600, second_of_day / 60 % 60, second_of_day % 60);
    let hour12 = (hour + 11) % 12 + 1;
    let month_name = MONTHS[date.month as usize - 1];
    let day_name = DAYS[(unix_s.div_euclid(86_400) + 4).rem_euclid(7) as usize];

    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next().unwrap_or('%');
        let unpadded = directive == '-';
        if unpadded {
            directive = chars.next().unwrap_or('-');
        }
        let two = |n: i64| if unpadded { n.to_string() } else { format!("{n:02}") };
        match directive {
            'Y' => out.push_str(&date.year.to_string()),
            'y' => out.push_str(&two(date.year.rem_euclid(100))),
            'm' => out.push_str(&two(date.month)),
            'd' => out.push_str(&two(date.day)),
            'e' => out.push_str(&format!("{:2}", date.day)),
            'H' => out.push_str(&two(hour)),
            'I' => out.push_str(&two(hour12)),
            'M' => out.push_str(&two(minute)),
            'S' => out.push_str(&two(second)),
            'p' => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            'j' => out.push_str(&format!("{:03}", day_of_year(&date))),
            'B' => out.push_str(month_name),
            'b' => out.push_str(&month_name[..3]),
            'A' => out.push_str(day_name),
            'a' => out.push_str(&day_name[..3]),
            'F' => out.push_str(&format!("{}-{:02}-{:02}", date.year, date.month, date.day)),
            'T' => out.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
            'Z' => out.push_str("UTC"),
            'z' => out.push_str("+0000"),
            '%' => out.push('%'),
            other => out.extend(['%', other]),
        }
    }
    out
}
