package formats

import (
	"cmp"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// maxOperators is how many signs a file of variables may have that make expressions. The
// parser calls itself for each.
const maxOperators = 2_000

// readHCL reads a file of Terraform variables: attributes with literal values. What is no
// literal becomes a value of the kind unread, and expressions names it with its line.
func readHCL(name string, data []byte) (v *value, expressions []entry, err error) {
	if err := checkText(data); err != nil {
		return nil, nil, err
	}
	if err := checkTokens(name, data); err != nil {
		return nil, nil, err
	}
	file, diags := hclsyntax.ParseConfig(data, name, hcl.InitialPos)
	if diags.HasErrors() {
		var d *hcl.Diagnostic
		if errors.As(diags.Errs()[0], &d) && d.Subject != nil {
			return nil, nil, failAt(d.Subject.Start.Line, "not valid HCL: %s", d.Summary)
		}
		return nil, nil, failAt(0, "not valid HCL")
	}
	body, ok := file.Body.(*hclsyntax.Body)
	if !ok {
		return nil, nil, failAt(0, "not valid HCL")
	}
	c := hclConverter{left: maxValues}
	out := &value{kind: mapping, line: 1}
	for _, b := range body.Blocks {
		c.expressions = append(c.expressions, entry{b.Type, b.TypeRange.Start.Line, &value{kind: unread, text: "is a block, and not the value of a variable"}})
	}
	for _, a := range body.Attributes {
		out.keys = append(out.keys, entry{a.Name, a.NameRange.Start.Line, c.convert(a.Name, a.Expr)})
	}
	byLine := func(a, b entry) int { return a.line - b.line }
	slices.SortStableFunc(out.keys, byLine)
	slices.SortStableFunc(c.expressions, byLine)
	if c.left < 0 {
		return nil, nil, failAt(0, "too many values")
	}
	return out, c.expressions, nil
}

// checkTokens refuses, before the parser, what it would nest too deep for.
func checkTokens(name string, data []byte) error {
	tokens, _ := hclsyntax.LexConfig(data, name, hcl.InitialPos) // the parser reports what is wrong
	depth, operators := 0, 0
	for _, t := range tokens {
		switch t.Type {
		case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen, hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl,
			hclsyntax.TokenOQuote, hclsyntax.TokenOHeredoc:
			depth++
		case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen, hclsyntax.TokenTemplateSeqEnd, hclsyntax.TokenCQuote, hclsyntax.TokenCHeredoc:
			depth--
		case hclsyntax.TokenIdent, hclsyntax.TokenNumberLit, hclsyntax.TokenQuotedLit, hclsyntax.TokenStringLit, hclsyntax.TokenComma, hclsyntax.TokenColon,
			hclsyntax.TokenEqual, hclsyntax.TokenNewline, hclsyntax.TokenComment, hclsyntax.TokenEOF:
		default:
			operators++
		}
		if depth > maxDepth || operators > maxOperators {
			return failAt(t.Range.Start.Line, "nested too deep, or too many expressions: it is no file of variables")
		}
	}
	return nil
}

// hclConverter turns expressions into values.
type hclConverter struct {
	left        int
	expressions []entry // that are no literals, by their paths
}

// refuse records an expression that is no literal.
func (c *hclConverter) refuse(path string, e hclsyntax.Expression) *value {
	out := &value{kind: unread, line: e.Range().Start.Line, text: "is an expression, and not a value"}
	c.expressions = append(c.expressions, entry{path, out.line, out})
	return out
}

func (c *hclConverter) convert(path string, e hclsyntax.Expression) *value {
	if c.left--; c.left < 0 {
		return &value{kind: unread}
	}
	out := &value{line: e.Range().Start.Line}
	switch e := e.(type) {
	case *hclsyntax.ParenthesesExpr:
		return c.convert(path, e.Expression)
	case *hclsyntax.LiteralValueExpr:
		return c.literal(path, e, e.Val, out)
	case *hclsyntax.UnaryOpExpr:
		if v, ok := e.Val.(*hclsyntax.LiteralValueExpr); ok && e.Op == hclsyntax.OpNegate {
			inner := c.literal(path, v, v.Val, out)
			if inner.kind == number {
				inner.text = "-" + inner.text
				return inner
			}
		}
		return c.refuse(path, e)
	case *hclsyntax.TemplateExpr:
		var b strings.Builder
		for _, part := range e.Parts {
			v, ok := part.(*hclsyntax.LiteralValueExpr)
			if !ok || v.Val.Type() != cty.String {
				return c.refuse(path, e)
			}
			b.WriteString(v.Val.AsString())
		}
		out.kind, out.text = text, b.String()
		return out
	case *hclsyntax.TupleConsExpr:
		out.kind = list
		for i, item := range e.Exprs {
			out.items = append(out.items, c.convert(fmt.Sprintf("%s[%d]", path, i), item))
		}
		return out
	case *hclsyntax.ObjectConsExpr:
		return c.object(path, e, out)
	}
	return c.refuse(path, e)
}

// literal converts a literal of the language: a number, true, false or null.
func (c *hclConverter) literal(path string, e hclsyntax.Expression, v cty.Value, out *value) *value {
	switch {
	case v.IsNull():
		return out
	case v.Type() == cty.Bool:
		out.kind, out.text = truth, fmt.Sprint(v.True())
	case v.Type() == cty.String:
		out.kind, out.text = text, v.AsString()
	case v.Type() == cty.Number:
		n := v.AsBigFloat()
		if exponent := n.MantExp(nil); exponent > 64 || exponent < -64 {
			return c.refuse(path, e) // no number of a cluster, and long to write out
		}
		out.kind, out.text = number, formatNumber(n)
	default:
		return c.refuse(path, e)
	}
	return out
}

func formatNumber(n *big.Float) string {
	if n.IsInt() {
		return n.Text('f', 0)
	}
	return n.Text('g', 10)
}

func (c *hclConverter) object(path string, e *hclsyntax.ObjectConsExpr, out *value) *value {
	out.kind = mapping
	for _, item := range e.Items {
		key := c.key(path, item.KeyExpr)
		line := item.KeyExpr.Range().Start.Line
		if key == "" || len(out.keys) == maxKeys || out.has(key) {
			c.expressions = append(c.expressions, entry{joinPath(path, cmp.Or(key, "(...)")), line, &value{kind: unread, text: "is no key, or stands here twice"}})
			continue
		}
		out.keys = append(out.keys, entry{key, line, c.convert(joinPath(path, key), item.ValueExpr)})
	}
	return out
}

// key is the key of an object, "" where it is an expression.
func (c *hclConverter) key(path string, e hclsyntax.Expression) string {
	if word := hcl.ExprAsKeyword(e); word != "" {
		return word
	}
	wrapped, ok := e.(*hclsyntax.ObjectConsKeyExpr)
	if !ok {
		return ""
	}
	inner := hclConverter{left: 10} // what it finds is reported once, as the key
	if k := inner.convert(path, wrapped.Wrapped); k.kind == text || k.kind == number {
		return k.text
	}
	return ""
}

func joinPath(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
