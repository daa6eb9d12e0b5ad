// Package values compares the values of Helm releases, without showing any: it is a value of the nouns, and knows
// none of them.
package values
