package agent

// ReadAgain is the record of a repository whose clusters are read.
const ReadAgain = readAgain
