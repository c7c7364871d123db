// SPDX-License-Identifier: Apache-2.0

// Package features reads what "sbatch --constraint" asks of nodes (sbatch(1)): features
// with & or a comma (and), | (or), *N (on so many nodes), and groups. In [a|b] all nodes
// have the same one, in [a*2&b*4] some have the first and some the second. Between
// operators of one group Slurm knows no precedence: it goes from left to right
// (src/slurmctld/node_scheduler.c, valid_feature_counts).
package features

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Expr is a constraint. The zero value is met by every node.
type Expr struct {
	terms []term
}

// term is a feature or a group, joined to those before it.
type term struct {
	or      bool
	feature string // empty: group
	group   Expr
	some    bool // on some of the job's nodes alone (*N)
}

// errSyntax means that a text is no constraint.
var errSyntax = errors.New("not a constraint")

// Parse reads a constraint.
func Parse(text string) (Expr, error) {
	p := parser{rest: strings.TrimSpace(text)}
	if p.rest == "" {
		return Expr{}, nil
	}
	e, err := p.group(false)
	if err == nil && p.rest != "" {
		err = errSyntax
	}
	if err != nil {
		return Expr{}, fmt.Errorf("read %.50q: %w", text, err)
	}
	return e, nil
}

type parser struct {
	rest  string
	depth int
}

// deepest is more than Slurm takes: one parenthesis within brackets.
const deepest = 4

// group reads terms up to the end or a closing sign. In brackets every operator is an
// or: each of the job's nodes needs to have one of the features.
func (p *parser) group(brackets bool) (e Expr, err error) {
	if p.depth++; p.depth > deepest {
		return e, errSyntax
	}
	defer func() { p.depth-- }()
	or := false
	for {
		t, err := p.term()
		if err != nil {
			return e, err
		}
		t.or = or
		if brackets {
			t.some = false
		}
		e.terms = append(e.terms, t)
		if p.rest == "" || p.rest[0] == ')' || p.rest[0] == ']' {
			return e, nil
		}
		sign := p.take(1)
		if !strings.Contains("&,|", sign) {
			return e, errSyntax
		}
		or = brackets || sign == "|"
	}
}

func (p *parser) term() (t term, err error) {
	if p.rest == "" {
		return t, errSyntax
	}
	switch open := p.rest[0]; open {
	case '(', '[':
		p.take(1)
		if t.group, err = p.group(open == '['); err != nil {
			return t, err
		}
		if closing := p.take(1); open == '(' && closing != ")" || open == '[' && closing != "]" {
			return t, errSyntax
		}
	default:
		n := strings.IndexAny(p.rest, "&,|*()[]")
		if n < 0 {
			n = len(p.rest)
		}
		if t.feature = p.take(n); t.feature == "" {
			return t, errSyntax
		}
	}
	if strings.HasPrefix(p.rest, "*") {
		digits := len(p.rest) - len(strings.TrimLeft(p.rest[1:], "0123456789"))
		if n, err := strconv.ParseUint(p.take(digits)[1:], 10, 31); err != nil || n == 0 {
			return t, errSyntax
		}
		t.some = true
	}
	return t, nil
}

func (p *parser) take(n int) string {
	n = min(n, len(p.rest))
	taken := p.rest[:n]
	p.rest = p.rest[n:]
	return taken
}

// May tells whether a node with these features may be one of a job's so many nodes.
func (e Expr) May(has func(feature string) bool, nodes int) bool {
	met := true
	for i, t := range e.terms {
		this := t.some && nodes > 1
		switch {
		case this:
		case t.feature != "":
			this = has(t.feature)
		default:
			this = t.group.May(has, nodes)
		}
		switch {
		case i == 0:
			met = this
		case t.or:
			met = met || this
		default:
			met = met && this
		}
	}
	return met
}
