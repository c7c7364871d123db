// SPDX-License-Identifier: Apache-2.0

package page

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"

	"carma/db/texttable"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// Document is a page for a browser: no script, nothing from elsewhere.
type Document struct {
	Title    string
	Style    template.CSS
	Sections []Section
}

// Section is a part of a page.
type Section struct {
	Title   string
	Text    []string
	Keys    []Key
	Drawing template.HTML
	Parts   []template.HTML // drawings side by side where there is room
	Columns []texttable.Column
	Rows    [][]string
	Wrap    bool // texts in the table may take several lines
	Notes   []template.HTML
}

// Key is a line of a legend: a class of the drawings.
type Key struct {
	Class, Text string
	Line        bool // otherwise an area
}

// Write writes the page.
func (d Document) Write(w io.Writer) error {
	d.Style = template.CSS(colours)
	if err := pageTemplate.Execute(w, d); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

// Marked has what stands between backticks as code.
func Marked(list []string) (notes []template.HTML) {
	for _, n := range list {
		var b strings.Builder
		for i, part := range strings.Split(n, "`") {
			if part = template.HTMLEscapeString(part); i%2 == 1 {
				part = "<code>" + part + "</code>"
			}
			b.WriteString(part)
		}
		notes = append(notes, template.HTML(b.String()))
	}
	return notes
}
