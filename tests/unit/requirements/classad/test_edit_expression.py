from requirements.classad import expression


def test_comparisons_are_read_with_the_attribute_on_the_left():
    text = '4000 < other.MaxRAM && TARGET.CPUModel == "Intel" && member("a", Tags)'
    found = [(each.attribute, each.operator, each.value) for each in expression.comparisons(text)]
    assert found == [("other.MaxRAM", ">", 4000), ("TARGET.CPUModel", "==", "Intel"), ("Tags", "member", "a")]


def test_a_comparison_is_replaced_where_it_stands():
    text = "(other.MaxRAM  >  4000)"
    [found] = expression.comparisons(text)
    assert found.name == "MaxRAM"
    assert expression.replace_part(text, found.whole, expression.render_comparison(found, ">=", 2000)).strip(
        "()"
    ) == ("other.MaxRAM >= 2000")


def test_a_text_is_written_with_its_quotes_escaped():
    [found] = expression.comparisons('other.Model == "x"')
    [again] = expression.comparisons(expression.render_comparison(found, "==", 'a "b"'))
    assert again.value == 'a "b"'


def test_what_is_no_comparison_of_a_name_with_a_value_is_left_alone():
    for text in ("other.A == other.B", "1 < 2 < 3", "true", "other.A >", "other.A + 1 > 2"):
        assert list(expression.comparisons(text)) == []


def test_attributes_keep_their_scope():
    assert [name for name, _ in expression.attributes("other.A > MY.B && C")] == ["other.A", "MY.B", "C"]
    assert list(map(expression.unscoped_name, ("other.A", "MY.B", "C", "D.E"))) == ["A", "B", "C", "D.E"]
