package text

import (
	"fmt"
	"strings"
)

// Count is a number of things in words: 1 node, 2 nodes.
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// GiB is a size for people.
func GiB(b int64) string {
	if b%(1<<30) == 0 {
		return fmt.Sprintf("%d GiB", b>>30)
	}
	return fmt.Sprintf("%.1f GiB", float64(b)/(1<<30))
}

// JoinSome joins the first of some words, at most so many, and counts the others.
func JoinSome(list []string, most int, separator string) string {
	if more := len(list) - most; more > 0 {
		list = append(list[:most:most], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(list, separator)
}

// Colon is a text after a colon, "" where there is none.
func Colon(s string) string {
	if s == "" {
		return ""
	}
	return ": " + s
}
