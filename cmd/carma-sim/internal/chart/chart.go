// SPDX-License-Identifier: Apache-2.0

// Package chart draws what carma-sim compares: one HTML page that needs no
// other file and no script.
package chart

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// Line is a curve over time.
type Line struct {
	Name   string
	Colour int // the same number, the same colour
	StepS  float64
	Y      []float64
}

// Bar is a mean with its spread.
type Bar struct {
	Name           string
	Mean, Min, Max float64
}

// palette is Okabe and Ito's, which people with any colour vision tell apart.
var palette = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#a6761d"}

func colour(i int) string { return palette[i%len(palette)] }

// The size of a chart; it scales with the page.
const (
	width  = 480
	height = 240
	left   = 46
	right  = 8
	top    = 8
	bottom = 30
)

// Lines draws curves over hours.
func Lines(title, unit string, lines []Line) string {
	var endS, most float64
	for _, l := range lines {
		endS = max(endS, l.StepS*float64(len(l.Y)))
		for _, y := range l.Y {
			most = max(most, y)
		}
	}
	if endS <= 0 || most <= 0 {
		return ""
	}
	yStep, xStep := tick(most), tick(endS/3600)
	most = math.Ceil(most/yStep-1e-9) * yStep
	x := func(s float64) float64 { return left + s/endS*(width-left-right) }
	y := func(v float64) float64 { return height - bottom - v/most*(height-top-bottom) }
	var b strings.Builder
	open(&b, title, unit, height)
	for v := 0.0; v <= most*1.0001; v += yStep {
		fmt.Fprintf(&b, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`,
			left, width-right, y(v), y(v), left-4, y(v)+4, number(v))
	}
	for h := 0.0; h <= endS/3600*1.0001; h += xStep {
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`, x(h*3600), height-bottom+14, number(h))
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">hours</text>`, width-right, height-2)
	for _, l := range lines {
		fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="1.5" points="`, colour(l.Colour))
		for k, v := range l.Y {
			fmt.Fprintf(&b, "%.1f,%.1f ", x((float64(k)+0.5)*l.StepS), y(v))
		}
		b.WriteString(`"/>`)
	}
	b.WriteString("</svg></figure>\n")
	return b.String()
}

// Bars draws means with a line from least to most.
func Bars(title, unit string, bars []Bar) string {
	const row = 30
	var most float64
	for _, r := range bars {
		most = max(most, r.Max)
	}
	if most < least {
		most = 1
	}
	x := func(v float64) float64 { return v / most * (width - 78) }
	var b strings.Builder
	open(&b, title, unit, row*len(bars)+4)
	for i, r := range bars {
		y := row * i
		fmt.Fprintf(&b, `<text x="0" y="%d">%s</text><rect x="0" y="%d" width="%.1f" height="11" fill="%s"/>`,
			y+12, html.EscapeString(r.Name), y+16, x(r.Mean), colour(i))
		if r.Max > r.Min {
			fmt.Fprintf(&b, `<line class="spread" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`, x(r.Min), x(r.Max), y+21, y+21)
		}
		fmt.Fprintf(&b, `<text x="%.1f" y="%d">%s</text>`, x(r.Max)+6, y+26, number(r.Mean))
	}
	b.WriteString("</svg></figure>\n")
	return b.String()
}

func open(b *strings.Builder, title, unit string, height int) {
	fmt.Fprintf(b, `<figure><figcaption>%s, %s</figcaption><svg viewBox="0 0 %d %d" role="img" aria-label="%s">`,
		html.EscapeString(title), html.EscapeString(unit), width, height, html.EscapeString(title))
}

// tick is a round step that divides most into 4 to 10 parts.
func tick(most float64) float64 {
	step := math.Pow(10, math.Floor(math.Log10(most)))
	for _, f := range []float64{0.1, 0.2, 0.5} {
		if most/(step*f) <= 8 {
			return step * f
		}
	}
	return step
}

// least is the least figure that is not rounding.
const least = 1e-6

// number writes three digits.
func number(v float64) string {
	decimals := 0
	switch {
	case v < least:
		return "0"
	case v < 1000:
		decimals = 2 - int(math.Floor(math.Log10(v)))
	}
	v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'f', decimals, 64), 64)
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// Legend names the colours of curves.
func Legend(lines []Line) string {
	var b strings.Builder
	b.WriteString(`<p class="legend">`)
	for _, l := range lines {
		fmt.Fprintf(&b, `<span><i style="background:%s"></i>%s</span> `, colour(l.Colour), html.EscapeString(l.Name))
	}
	b.WriteString("</p>\n")
	return b.String()
}

// Page puts charts and a table of text together.
func Page(title, lead, table string, charts ...string) string {
	return `<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>` + html.EscapeString(title) + `</title><style>
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:1100px}
h1{font-size:1.3rem}
pre{overflow-x:auto;font-size:13px;line-height:1.4}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:1rem 2rem}
figure{margin:0}
figcaption{font-weight:600;margin-bottom:.3rem}
svg{width:100%;height:auto;display:block}
svg text{font-size:11.5px;fill:currentColor}
.grid{stroke:currentColor;stroke-opacity:.15}
.spread{stroke:currentColor;stroke-width:2}
.legend{grid-column:1/-1;margin:0}
.legend span{margin-right:1rem;white-space:nowrap}
.legend i{display:inline-block;width:.9em;height:.9em;margin-right:.35em;vertical-align:-.1em}
</style></head><body>
<h1>` + html.EscapeString(title) + "</h1>\n<p>" + html.EscapeString(lead) + "</p>\n<pre>" + html.EscapeString(table) + "</pre>\n" +
		`<div class="charts">` + "\n" + strings.Join(charts, "") + "</div>\n</body></html>\n"
}
