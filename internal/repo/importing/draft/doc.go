// Package draft answers what an imported cluster is in the terms of the inventory, before
// it is known whether that is complete: each reader of a foreign description fills one, and
// it prints the files.
//
// It is pure. It knows neither the foreign descriptions nor the rules of the inventory: what
// is wrong with the files is found by the loader that reads every other inventory, too.
package draft
