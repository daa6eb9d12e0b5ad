package probe

// must fails where a test cannot go on.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
