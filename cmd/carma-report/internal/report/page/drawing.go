// SPDX-License-Identifier: Apache-2.0

// Package page draws bars and lines over time as SVG, and writes pages for a browser,
// each in one file.
package page

import (
	"fmt"
	"html"
	"io"
	"strings"
)

// Drawing is an SVG that is being made. Its colours are classes, so that a page
// in a browser decides about light and dark; a file of its own brings them along.
type Drawing struct {
	strings.Builder
	width, height int
}

// colours holds for drawings and pages alike.
const colours = `.d-text{fill:#222;font:13px sans-serif}.d-axis{stroke:#999;stroke-width:1}` +
	`.d-a{fill:#3b6fb6}.d-b{fill:#c9d7ea}.d-c{fill:#d9822b}.d-line{fill:none;stroke:#3b6fb6;stroke-width:1.5;` +
	`vector-effect:non-scaling-stroke}.d-grid{stroke:#eee}.d-size{stroke:#555;stroke-dasharray:2 3}` +
	`.d-book{fill:#dfe8f4;stroke:#a9bedb;vector-effect:non-scaling-stroke}.d-job{fill:#c9d7ea;stroke:#3b6fb6}` +
	`.d-bad{fill:#f7dfc6;stroke:#a85a10;stroke-width:2;stroke-dasharray:4 2}.d-mark{font-weight:bold}` +
	`.d-at{fill:transparent}.d-at:hover{fill:#8883}` +
	`@media(max-width:699px){.d-w1{display:none}}@media(max-width:1099px){.d-w2{display:none}}` +
	`@media(max-width:1264px){.d-w3{display:none}}` +
	`@media(min-width:700px){.d-few{display:none}}` +
	`@media(prefers-color-scheme:dark){.d-text{fill:#ddd}.d-axis{stroke:#666}` +
	`.d-a{fill:#6c9fe0}.d-b{fill:#34465f}.d-c{fill:#e39a4f}.d-line{stroke:#6c9fe0}` +
	`.d-grid{stroke:#2a313a}.d-size{stroke:#aaa}.d-book{fill:#26344a;stroke:#4a6286}` +
	`.d-job{fill:#34465f;stroke:#6c9fe0}.d-bad{fill:#54371c;stroke:#e39a4f}}`

// New is an empty drawing.
func New(width, height int) *Drawing { return &Drawing{width: width, height: height} }

func (d *Drawing) rect(class string, x, y, w, h float64) {
	fmt.Fprintf(d, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, class, x, y, max(w, 0), h)
}

func (d *Drawing) text(x, y float64, anchor, s string) {
	const element = `<text class="d-text" x="%.1f" y="%.1f" text-anchor="%s">%s</text>`
	fmt.Fprintf(d, element, x, y, anchor, html.EscapeString(s))
}

// Inline is the Drawing as a part of a page.
func (d *Drawing) Inline(title string) string {
	if d.width == ofPage {
		const element = `<svg class="time" style="height:%dpx" role="img" xmlns="http://www.w3.org/2000/svg">` +
			`<title>%s</title>%s</svg>`
		return fmt.Sprintf(element, d.height, html.EscapeString(title), d.String())
	}
	const element = `<svg viewBox="0 0 %d %d" role="img" xmlns="http://www.w3.org/2000/svg"><title>%s</title>%s</svg>`
	return fmt.Sprintf(element, d.width, d.height, html.EscapeString(title), d.String())
}

// File writes the Drawing as a file.
func (d *Drawing) File(w io.Writer, title string) error {
	_, err := fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?>`+"\n"+
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d">`+
		`<title>%s</title><style>%s</style>%s</svg>`+"\n",
		d.width, d.height, d.width, d.height, html.EscapeString(title), colours, d.String())
	return err
}

// Bar is one line of a bar chart: a part of a whole, and a mark.
type Bar struct {
	Label, Figure string
	Value, Back   float64 // Back: a paler bar behind, 0: none
	Alarm         bool
}

// Width is that of a drawing, and BarStep the height of each of its bars.
const (
	Width   = 480 // on a phone the texts can still be read
	BarStep = 24
)

const (
	barHeight  = 16
	labelWidth = 130
)

// Bars draws horizontal bars on a common scale from 0.
func (d *Drawing) Bars(top float64, list []Bar) {
	most := 1e-9
	for _, b := range list {
		most = max(most, b.Value, b.Back)
	}
	room := float64(Width - labelWidth - 80)
	for i, b := range list {
		y := top + float64(i*BarStep)
		d.text(labelWidth-8, y+12, "end", cut(strings.TrimPrefix(b.Label, "NVIDIA ")))
		if b.Back > 0 {
			d.rect("d-b", labelWidth, y, room*b.Back/most, barHeight)
		}
		class := "d-a"
		if b.Alarm {
			class = "d-c"
		}
		d.rect(class, labelWidth, y+3, room*b.Value/most, barHeight-6)
		d.text(labelWidth+room*max(b.Value, b.Back)/most+6, y+12, "start", b.Figure)
	}
}

// cut shortens a label to what there is room for.
func cut(label string) string {
	const most = 18
	if runes := []rune(label); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return label
}
