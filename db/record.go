// SPDX-License-Identifier: Apache-2.0

package db

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"carma/db/figure"
	"carma/slurmbridge/usertext"
)

// A record is written as JSON, by the tags of Attempt: in the database, in the spool, in slurmdbd, in the ledger.

// encode is a record as the database keeps records: times in milliseconds and UTC.
func (a Attempt) encode() (string, error) {
	for _, t := range a.times() {
		*t = t.Truncate(time.Millisecond).UTC()
	}
	text, err := json.Marshal(a)
	return string(text), err
}

// decode reads a record into the slices of an earlier record. Texts are parts of the JSON.
func (a *Attempt) decode(text string) error {
	*a = Attempt{Neighbours: a.Neighbours[:0], GPUs: a.GPUs[:0]}
	p := parser{rest: text}
	if p.object(reflect.ValueOf(a).Elem(), attemptMembers) && p.rest == "" {
		a.clean = !p.foreign
	} else {
		*a = Attempt{}
		if err := json.Unmarshal([]byte(text), a); err != nil {
			return fmt.Errorf("a record cannot be read: %w; carma-node db check says more", err)
		}
	}
	for _, t := range a.times() {
		if !t.IsZero() {
			*t = t.Local()
		}
	}
	if len(a.Neighbours) == 0 {
		a.Neighbours = nil
	}
	a.Total = TotalOf(a.GPUs)
	return nil
}

// parser reads the JSON of encode, by the same tags, several times as fast as encoding/json: a report reads a
// million records. The parser gives up where JSON is written in another way, and decode takes encoding/json then.
type parser struct {
	rest    string
	foreign bool // usertext.Clean would change some text
}

// member is a field of a struct: the beginning of the field's JSON, and the field's number.
type member struct {
	begin string
	index int
}

var (
	attemptMembers = membersOf(reflect.TypeFor[Attempt]())
	gpuMembers     = membersOf(reflect.TypeFor[AttemptGPU]())
	figureMembers  = membersOf(reflect.TypeFor[figure.Figures]())
)

func membersOf(t reflect.Type) (list []member) {
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name != "" && name != "-" {
			list = append(list, member{`"` + name + `":`, i})
		}
	}
	return list
}

// object reads members in the order of the fields; some may be missing.
func (p *parser) object(v reflect.Value, list []member) bool {
	if !p.skip('{') {
		return false
	}
	for _, m := range list {
		if !strings.HasPrefix(p.rest, m.begin) {
			continue
		}
		p.rest = p.rest[len(m.begin):]
		if !p.value(v.Field(m.index)) {
			return false
		}
		if !p.skip(',') {
			break
		}
	}
	return p.skip('}')
}

func (p *parser) value(v reflect.Value) (ok bool) {
	switch v.Kind() {
	case reflect.String:
		var s string
		s, ok = p.text()
		v.SetString(s)
		return ok
	case reflect.Uint32, reflect.Int64, reflect.Int:
		n, ok := p.digits()
		if v.CanInt() {
			v.SetInt(n)
			return ok
		}
		v.SetUint(uint64(n))
		return ok && n>>32 == 0
	case reflect.Float64:
		f, ok := p.float()
		v.SetFloat(f)
		return ok
	}
	switch to := v.Addr().Interface().(type) {
	case *time.Time:
		s, ok := p.text()
		t, err := time.Parse(time.RFC3339, s)
		*to = t
		return ok && err == nil
	case *figure.Figures:
		return p.object(v, figureMembers)
	case *[]uint32:
		return p.list(func() bool {
			n, ok := p.digits()
			*to = append(*to, uint32(n))
			return ok && n>>32 == 0
		})
	case *[]AttemptGPU:
		return p.list(func() bool {
			*to = append(*to, AttemptGPU{})
			return p.object(reflect.ValueOf(&(*to)[len(*to)-1]).Elem(), gpuMembers)
		})
	}
	return false
}

func (p *parser) list(element func() bool) bool {
	if !p.skip('[') {
		return false
	}
	for element() {
		if !p.skip(',') {
			return p.skip(']')
		}
	}
	return false
}

func (p *parser) skip(c byte) bool {
	if p.rest == "" || p.rest[0] != c {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

// text also checks the characters: texts are short, so the check costs nothing.
func (p *parser) text() (s string, ok bool) {
	if !p.skip('"') {
		return "", false
	}
	foreign := false
	for i := 0; i < len(p.rest); i++ {
		switch c := p.rest[i]; {
		case c == '"':
			s, p.rest = p.rest[:i], p.rest[i+1:]
			p.foreign = p.foreign || foreign || i > usertext.Most
			return s, !foreign || utf8.ValidString(s)
		case c == '\\' || c < ' ':
			return "", false
		case c > '~':
			foreign = true
		}
	}
	return "", false
}

func (p *parser) digits() (n int64, ok bool) {
	i := 0
	for ; i < len(p.rest) && i < 18 && p.rest[i]-'0' < 10; i++ {
		n = n*10 + int64(p.rest[i]-'0')
	}
	p.rest = p.rest[i:]
	return n, i > 0
}

var tens = [...]float64{1, 10, 100, 1000, 1e4, 1e5, 1e6}

// float reads a number, or null for Unknown. A number of few digits is an exact quotient and needs no ParseFloat.
func (p *parser) float() (f float64, ok bool) {
	n, end, decimals, plain := int64(0), 0, -1, true
number:
	for ; end < len(p.rest); end++ {
		switch c := p.rest[end]; {
		case c-'0' < 10:
			if n = n*10 + int64(c-'0'); decimals >= 0 {
				decimals++
			}
		case c == ',' || c == '}':
			break number
		case c == '.' && decimals < 0:
			decimals = 0
		default:
			plain = false
		}
	}
	word := p.rest[:end]
	p.rest = p.rest[end:]
	switch decimals = max(decimals, 0); {
	case plain && 0 < end && end <= 16 && decimals < len(tens):
		return float64(n) / tens[decimals], true
	case word == "null":
		return float64(figure.Unknown), true
	}
	f, err := strconv.ParseFloat(word, 64)
	return f, err == nil
}
