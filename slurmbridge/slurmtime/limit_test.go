// SPDX-License-Identifier: Apache-2.0

package slurmtime

import (
	"testing"
	"time"
)

func TestLimit(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"90": 90 * time.Minute, "90:30": 90*time.Minute + 30*time.Second, "1:30:00": 90 * time.Minute,
		"0": 0, "2-": 48 * time.Hour, "2-12": 60 * time.Hour, "2-12:30": 60*time.Hour + 30*time.Minute,
		"2-00:00:01": 48*time.Hour + time.Second, "INFINITE": unlimited, "unlimited": unlimited, "-1": unlimited,
		"52560000": 52560000 * time.Minute, "4294967294": unlimited,
		"9999999-9999999:9999999:9999999": unlimited,
	} {
		got, ok := Limit(text)
		if !ok || got != want {
			t.Errorf("%q: %v, %v, want %v", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "x", "4h", "1:2:3:4", "1-2:3:4:5", "-2", "-", "1:", ":1", "1--2", "+1", "1.5",
		"12345678901", " 1"} {
		if got, ok := Limit(text); ok {
			t.Errorf("%q: %v", text, got)
		}
	}
}
