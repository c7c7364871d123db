// SPDX-License-Identifier: Apache-2.0

// Package slurmtime reads and writes times as Slurm's commands do.
package slurmtime

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// The times that sacct takes (sacct(1), Slurm's src/common/parse_time.c).
var (
	relativeTime = regexp.MustCompile(`^now([+-]\d+)(second|minute|hour|day|week)?s?$`)
	clockTime    = regexp.MustCompile(`^(\d{1,2}):(\d{2})(?::(\d{2}))?([ap]m)?$`)
	dateTimes    = []string{"2006-01-02", "01/02/06", "01/02/2006", "01.02.06", "010206"}
	shortDates   = []string{"01/02", "01.02", "0102"}
)

var units = map[string]time.Duration{
	"": time.Second, "second": time.Second, "minute": time.Minute, "hour": time.Hour,
	"day": 24 * time.Hour, "week": 7 * 24 * time.Hour,
}

// Period reads sacct's -S and -E; an empty word is a zero time.
func Period(from, to string, now time.Time) (start, end time.Time, err error) {
	if from != "" {
		if start, err = Parse(from, now); err != nil {
			return start, end, err
		}
	}
	if to != "" {
		if end, err = Parse(to, now); err != nil {
			return start, end, err
		}
	}
	if !start.IsZero() && !end.IsZero() && end.Before(start) {
		to, from := end.Format(time.RFC3339), start.Format(time.RFC3339)
		return start, end, fmt.Errorf("the time ends (%s) before it starts (%s)", to, from)
	}
	return start, end, nil
}

// Parse reads a time of sacct's -S and -E. Days are 24 hours, as Slurm's are.
func Parse(word string, now time.Time) (time.Time, error) {
	word = strings.ToLower(strings.TrimSpace(word))
	midnight := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, now.Location())
	switch word {
	case "now":
		return now, nil
	case "today", "midnight":
		return midnight, nil
	case "tomorrow":
		return midnight.AddDate(0, 0, 1), nil
	case "noon":
		return hourOf(midnight, 12), nil
	case "fika":
		return hourOf(midnight, 15), nil
	case "teatime":
		return hourOf(midnight, 16), nil
	}
	if m := relativeTime.FindStringSubmatch(word); m != nil {
		n, err := strconv.Atoi(m[1])
		if err != nil || n > 1e6 || n < -1e6 {
			return time.Time{}, wrongTime(word)
		}
		return now.Add(time.Duration(n) * units[m[2]]), nil
	}
	if h, m, s, ok := parseClock(word); ok {
		t := time.Date(now.Year(), now.Month(), now.Day(), h, m, s, 0, now.Location())
		if t.After(now) { // sacct looks back
			t = time.Date(now.Year(), now.Month(), now.Day()-1, h, m, s, 0, now.Location())
		}
		return t, nil
	}
	date, clock, hasClock := strings.Cut(word, "t")
	if i := strings.LastIndexByte(word, '-'); !hasClock && i > 0 && strings.Contains(word[i:], ":") {
		date, clock, hasClock = word[:i], word[i+1:], true // MMDD[YY]-HH:MM
	}
	h, m, s, ok := parseClock(clock)
	if hasClock && !ok {
		return time.Time{}, wrongTime(word)
	}
	for i, layout := range append(dateTimes, shortDates...) {
		d, err := time.Parse(layout, date)
		if err != nil {
			continue
		}
		year := d.Year()
		if i >= len(dateTimes) {
			year = now.Year()
		}
		return time.Date(year, d.Month(), d.Day(), h, m, s, 0, now.Location()), nil
	}
	return time.Time{}, wrongTime(word)
}

func wrongTime(word string) error {
	return fmt.Errorf("%q is not a time; write now-2days, today, 13:00 or 2026-01-31T13:00", word)
}

func hourOf(day time.Time, hour int) time.Time {
	return time.Date(day.Year(), day.Month(), day.Day(), hour, 0, 0, 0, day.Location())
}

func parseClock(word string) (h, m, s int, ok bool) {
	f := clockTime.FindStringSubmatch(word)
	if f == nil {
		return 0, 0, 0, false
	}
	h, _ = strconv.Atoi(f[1])
	m, _ = strconv.Atoi(f[2])
	s, _ = strconv.Atoi(f[3])
	switch {
	case f[4] != "" && (h < 1 || h > 12):
		return 0, 0, 0, false
	case f[4] == "pm" && h < 12:
		h += 12
	case f[4] == "am" && h == 12:
		h = 0
	}
	return h, m, s, h < 24 && m < 60 && s < 60
}

// Format is SLURM_TIME_FORMAT: empty or "standard", "relative", or a format of
// strftime(3).
type Format struct {
	Text string
	Now  time.Time
	Zone *time.Location
}

var strftime = map[byte]string{
	'Y': "2006", 'm': "01", 'd': "02", 'H': "15", 'M': "04", 'S': "05", 'y': "06", 'b': "Jan", 'h': "Jan",
	'B': "January", 'a': "Mon", 'A': "Monday",
	'e': "_2", 'I': "03", 'p': "PM", 'Z': "MST", 'z': "-0700", 'j': "002", 'F': "2006-01-02", 'T': "15:04:05",
	'R': "15:04", 'D': "01/02/06",
}

// Append writes t.
func (f *Format) Append(to []byte, t time.Time) []byte {
	t = t.In(f.Zone)
	format := f.Text
	switch format {
	case "", "standard":
		return t.AppendFormat(to, "2006-01-02T15:04:05")
	case "relative":
		format = f.relative(t)
	}
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			to = append(to, format[i])
			continue
		}
		i++
		switch layout, ok := strftime[format[i]]; {
		case ok:
			to = t.AppendFormat(to, layout)
		case format[i] == 's':
			to = strconv.AppendInt(to, t.Unix(), 10)
		case format[i] == '%':
			to = append(to, '%')
		default:
			to = append(to, '%', format[i])
		}
	}
	return to
}

// relative is the format for a time as near as it is.
func (f *Format) relative(t time.Time) string {
	now := f.Now.In(f.Zone)
	day := func(t time.Time) time.Time { return time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, time.UTC) }
	switch days := int(day(t).Sub(day(now)).Hours() / 24); {
	case days == 0:
		return "%H:%M:%S"
	case days == -1:
		return "Ystday %H:%M"
	case days == 1:
		return "Tomorr %H:%M"
	case days > -7 && days < 7:
		return "%a %H:%M"
	case t.Year() == now.Year():
		return "%d %b %H:%M"
	}
	return "%d %b %Y"
}
