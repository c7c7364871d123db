// SPDX-License-Identifier: Apache-2.0

package slurmtime

import (
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	zone, err := time.LoadLocation("Europe/Copenhagen")
	if err != nil {
		t.Skip("no time zones on this machine: ", err)
	}
	// The day after summer time began: 2026-03-29 has 23 hours.
	now := time.Date(2026, 3, 30, 10, 30, 0, 0, zone)
	for word, want := range map[string]string{
		"now":                 "2026-03-30T10:30:00+02:00",
		"now-2days":           "2026-03-28T09:30:00+01:00", // 48 hours, as Slurm has it
		"now-1day":            "2026-03-29T10:30:00+02:00",
		"now+90":              "2026-03-30T10:31:30+02:00",
		"now-3hours":          "2026-03-30T07:30:00+02:00",
		"now-2weeks":          "2026-03-16T09:30:00+01:00",
		"today":               "2026-03-30T00:00:00+02:00",
		"midnight":            "2026-03-30T00:00:00+02:00",
		"tomorrow":            "2026-03-31T00:00:00+02:00",
		"noon":                "2026-03-30T12:00:00+02:00",
		"fika":                "2026-03-30T15:00:00+02:00",
		"teatime":             "2026-03-30T16:00:00+02:00",
		"09:15":               "2026-03-30T09:15:00+02:00",
		"13:00":               "2026-03-29T13:00:00+02:00", // not yet today
		"1:05pm":              "2026-03-29T13:05:00+02:00",
		"12:10am":             "2026-03-30T00:10:00+02:00",
		"2026-03-29":          "2026-03-29T00:00:00+01:00",
		"2026-03-29T02:30":    "2026-03-29T03:30:00+02:00", // an hour that was not
		"2026-10-25T02:30:15": "2026-10-25T02:30:15+01:00", // an hour that will be twice: the second
		"03/28":               "2026-03-28T00:00:00+01:00",
		"0328":                "2026-03-28T00:00:00+01:00",
		"032825":              "2025-03-28T00:00:00+01:00",
		"03/28/25":            "2025-03-28T00:00:00+01:00",
		"03.28.25":            "2025-03-28T00:00:00+01:00",
		"0328-13:00":          "2026-03-28T13:00:00+01:00",
		"03/28/25-13:00:01":   "2025-03-28T13:00:01+01:00",
	} {
		got, err := Parse(word, now)
		if err != nil || got.Format(time.RFC3339) != want {
			t.Errorf("%s: %s, %v; want %s", word, got.Format(time.RFC3339), err, want)
		}
	}
	for _, word := range []string{"", "whenever", "25:00", "12:60", "now-", "now-2moons", "2026-13-01", "2026-01-01T",
		"13:00pm", "now-99999999days"} {
		if got, err := Parse(word, now); err == nil {
			t.Errorf("%q is %s", word, got)
		}
	}
}

func TestFormat(t *testing.T) {
	now := time.Date(2026, 3, 30, 10, 30, 0, 0, time.UTC)
	at := time.Date(2026, 3, 29, 9, 5, 7, 0, time.UTC)
	for format, want := range map[string]string{
		"": "2026-03-29T09:05:07", "standard": "2026-03-29T09:05:07", "%s": "1774775107",
		"%a %d %b %H:%M %y%%": "Sun 29 Mar 09:05 26%", "%Q%": "%Q%", "relative": "Ystday 09:05",
		"%F %T %j": "2026-03-29 09:05:07 088",
	} {
		f := Format{format, now, time.UTC}
		if got := string(f.Append(nil, at)); got != want {
			t.Errorf("%q: %q, want %q", format, got, want)
		}
	}
	for days, want := range map[int]string{0: "09:05:07", 1: "Tomorr 09:05", -3: "Fri 09:05", -20: "10 Mar 09:05",
		-200: "11 Sep 2025"} {
		f := Format{"relative", now, time.UTC}
		if got := string(f.Append(nil, at.AddDate(0, 0, days+1))); got != want {
			t.Errorf("%d days: %q, want %q", days, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, word := range []string{"now-2days", "2026-03-29T02:30", "03/28/25-13:00:01", "1:05pm", "fika"} {
		f.Add(word)
	}
	now := time.Date(2026, 3, 30, 10, 30, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, word string) {
		if got, err := Parse(word, now); err == nil && got.IsZero() {
			t.Errorf("%q is no time and no error", word)
		}
	})
}
