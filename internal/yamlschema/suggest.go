package yamlschema

import "slices"

// Suggest returns the candidate that was most likely meant by word, or "".
func (l Language) Suggest(word string, candidates []string) string {
	for _, c := range candidates {
		if slices.Contains(l.Synonyms[c], word) {
			return c
		}
	}
	best, distance := "", max(1, min(3, len(word)/3))+1
	for _, c := range candidates {
		if d := editDistance(word, c); d < distance {
			best, distance = c, d
		}
	}
	return best
}

// editDistance counts the letters to insert, delete, replace or swap with
// their neighbour (optimal string alignment). Long words are not compared: they are no
// typing mistakes.
func editDistance(a, b string) int {
	const longest = 40
	if len(a) > longest || len(b) > longest {
		return longest
	}
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			same := 1
			if a[i-1] == b[j-1] {
				same = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+same)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
