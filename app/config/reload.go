package config

import (
	"fmt"
	"reflect"
	"strings"
)

// Follow returns the configuration with which a process started with c continues once its file holds next: the keys tagged
// reload:"live" come from next, all others stay. restart names the other keys that differ, which need a restart. The error names
// what in next contradicts the keys that stay.
func (c Config) Follow(next Config) (live Config, restart []string, err error) {
	restart = keep(reflect.ValueOf(&next).Elem(), reflect.ValueOf(&c).Elem(), "", false, nil)
	err = next.check()
	if err != nil && len(restart) > 0 {
		err = fmt.Errorf("with %s as at startup (only a restart changes it): %w", strings.Join(restart, ", "), err)
	}
	return next, restart, next.Hide(err)
}

// keep copies was to now, except for live keys, and appends the paths of other keys that differ to list.
func keep(now, was reflect.Value, path string, live bool, list []string) []string {
	for i := range now.NumField() {
		f := now.Type().Field(i)
		key, inline, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if key == "" && inline == "" || key == "-" {
			continue
		}
		at := strings.TrimPrefix(path+"."+key, ".")
		if inline != "" {
			at = path
		}
		lives := live
		if tag := f.Tag.Get("reload"); tag != "" {
			lives = tag == "live"
		}
		switch {
		case f.Type.Kind() == reflect.Struct:
			list = keep(now.Field(i), was.Field(i), at, lives, list)
		case !lives && !reflect.DeepEqual(now.Field(i).Interface(), was.Field(i).Interface()):
			list = append(list, at)
			now.Field(i).Set(was.Field(i))
		}
	}
	return list
}
