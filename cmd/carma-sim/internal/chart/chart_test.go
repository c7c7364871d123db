// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/xml"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// What is drawn is well-formed, and names cannot break out of it.
func TestChartsAreWellFormed(t *testing.T) {
	evil := `a<b>&"c'`
	for name, c := range map[string]string{
		"lines":  Lines("SMACT", "percent", []Line{{evil, 0, 10, []float64{1, 50, 99}}, {"x", 9, 20, []float64{3, 4}}}),
		"bars":   Bars(evil, "h", []Bar{{evil, 10, 9, 11}, {"zero", 0, 0, 0}}),
		"none":   Bars("OOM", "jobs", []Bar{{"x", 0, 0, 0}}),
		"legend": Legend([]Line{{Name: evil}, {Name: "b"}}),
	} {
		d := xml.NewDecoder(strings.NewReader(c))
		for {
			_, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v\n%s", name, err, c)
			}
		}
		if strings.Contains(c, "<b>") || strings.Contains(c, "NaN") || strings.Contains(c, "Inf") {
			t.Errorf("%s: %s", name, c)
		}
	}
	if Lines("x", "y", nil) != "" {
		t.Error("a chart of nothing")
	}
	page := Page(evil, evil, evil, Legend([]Line{{Name: "a"}}))
	if strings.Contains(page, "<b>") || strings.Contains(page, "http") {
		t.Error("the page holds a name as it is, or loads something")
	}
}

// Text stays within its chart, whatever the figures: a digit of DejaVu Sans, a wide font, takes
// 7.4 units.
func TestBarsFit(t *testing.T) {
	texts := regexp.MustCompile(`<text x="([\d.]+)" y="\d+">([^<]*)</text>`)
	for _, v := range []float64{0, 1e-13, 0.00001612, 0.000999, 0.0338, 5.67, 184.03, 12345678} {
		list := texts.FindAllStringSubmatch(Bars("GPUs held", "GPU hours", []Bar{{"first-fit, 12 of 12", v, v, v}}), -1)
		if len(list) != 2 {
			t.Fatalf("%g: %q", v, list)
		}
		for _, text := range list {
			if x, err := strconv.ParseFloat(text[1], 64); err != nil || x+7.4*float64(len(text[2])) > width {
				t.Errorf("%g: %s begins at %g, %v", v, text[2], x, err)
			}
		}
	}
	if none := Bars("Mean wait", "minutes", []Bar{{"x", 1e-13, 0, 2e-13}}); !strings.Contains(none, ` width="0.0"`) {
		t.Errorf("a bar of rounding: %s", none)
	}
}

func TestTick(t *testing.T) {
	for most, want := range map[float64]float64{40536: 10000, 100: 20, 10.7: 2, 1092: 200, 3: 0.5, 0.7: 0.1} {
		if got := tick(most); got < want*0.999 || got > want*1.001 {
			t.Errorf("tick(%g) = %g, want %g", most, got, want)
		}
	}
}

// Three digits, without an exponent.
func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{123456.7: "123457", 184.03: "184", 5.7: "5.7", 0.03381: "0.0338",
		0.00001612: "0.0000161", 1e-12: "0", 0: "0"} {
		if got := number(v); got != want {
			t.Errorf("number(%g) = %s, want %s", v, got, want)
		}
	}
}
