package doctor

import "fmt"

// ThinPool is an LVM thin pool. Its metadata fills with what is written to its
// volumes, and what fills first stops the pool.
type ThinPool struct {
	Name                        string // volume group and volume
	MetadataBytes, MetadataUsed int64
}

// From so many percent on the metadata of a thin pool is nearly full, and full.
const (
	metadataNearlyFull = 80
	metadataFull       = 95
)

// metadata judges whether the metadata of thin pools has room.
func (h Host) metadata() []Check {
	if !h.ThinPools.Known {
		return []Check{skipCheck("metadata", "", h.ThinPools)}
	}
	var out []Check
	for _, p := range h.ThinPools.Value {
		if p.MetadataBytes <= 0 {
			continue
		}
		c := Check{Name: "metadata", Subject: p.Name, Level: Pass}
		percent := p.MetadataUsed * 100 / p.MetadataBytes
		c.Message = fmt.Sprintf("%d %% of it are used", percent)
		if percent >= metadataNearlyFull {
			c.Level = Warn
			c.Message += ": when it is full the pool stops, with every VM on it"
			c.Hint = fmt.Sprintf("`lvextend --poolmetadatasize +1G %s`, where `vgs` shows room for it", p.Name)
		}
		if percent >= metadataFull {
			c.Level = Fail
		}
		out = append(out, c)
	}
	return out
}
